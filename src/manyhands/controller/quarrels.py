"""Pairs of servers that did not reach each other, and how long they are kept apart.

A cut between two servers does not show in their heartbeats. When a copy was removed because its
primary suspected it, it may join again later, and later still each time it is suspected anew.
"""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_S = 1.0
_LONGEST_S = 30.0
_FORGOTTEN_S = 60.0


@dataclass(slots=True)
class _Quarrel:
    times: int
    until_s: float


class Quarrels:
    """Who is kept apart, with a back-off for each pair. Not thread-safe; time is an argument."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], _Quarrel] = {}

    def note(self, first: int, second: int, now: float) -> None:
        """These two did not reach each other; of a pair that is apart this is no news."""
        pair = (min(first, second), max(first, second))
        quarrel = self._pairs.get(pair)
        if quarrel is not None and now < quarrel.until_s:
            return
        if quarrel is None or now > quarrel.until_s + _FORGOTTEN_S:
            quarrel = self._pairs[pair] = _Quarrel(0, now)
        quarrel.until_s = now + min(_LONGEST_S, _FIRST_S * 2**quarrel.times)
        quarrel.times += 1

    def forget(self, server: int) -> None:
        """A new process of this server has quarrelled with nobody."""
        self._pairs = {pair: q for pair, q in self._pairs.items() if server not in pair}

    def avoided(self, now: float) -> frozenset[tuple[int, int]]:
        """Pairs that are to be kept apart now, both ways round."""
        apart = [pair for pair, quarrel in self._pairs.items() if now < quarrel.until_s]
        return frozenset(apart) | frozenset((second, first) for first, second in apart)
