"""When a server tells the controller that a copy does not answer it.

The two may be cut off from each other while both reach the controller; only they can know. A
suspicion costs the copy its place, so the time in which this very process was stopped (a debugger,
a machine that swaps) must not count against others.
"""

from __future__ import annotations

from collections.abc import Mapping

_LONGEST_LOOK_S = 0.2  # between two looks; more than that we ourselves were away


class Suspicion:
    """Who has kept us waiting for `suspect_s` of time in which we looked. Not thread-safe."""

    def __init__(self, suspect_s: float, now_s: float) -> None:
        self._suspect_s = suspect_s
        self._looked_s = now_s
        self._waited_s: dict[int, float] = {}

    def look(self, lagging: Mapping[int, float], now_s: float) -> frozenset[int]:
        """The suspects, given how long each peer's oldest unanswered update is out by now."""
        passed_s = min(now_s - self._looked_s, _LONGEST_LOOK_S)
        self._looked_s = now_s
        self._waited_s = {
            peer: min(out_s, self._waited_s.get(peer, 0.0) + passed_s)
            for peer, out_s in lagging.items()
        }
        return frozenset(
            peer for peer, waited_s in self._waited_s.items() if waited_s >= self._suspect_s
        )
