"""How fast joining copies are filled: a budget of bytes, and a bound on what is under way.

Adam, section 3.3.3 re-creates missing copies on the remaining machines; here it takes no more than
its share of the network. Plain arithmetic on a clock that the caller reads; not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_BURST_S = 0.05  # what may be sent at once, in seconds of the budget
_MOST_UNDER_WAY_BYTES = 16 << 20  # to one copy: a slow one must not fill this server's memory


@dataclass(frozen=True, slots=True)
class Fill:
    """One chunk that one copy still lacks, as far as this server knows."""

    chunk: int
    peer: int
    since: int  # of its entry in the placement
    size_bytes: int


class Filling:
    """The chunks that wait to be sent to joining copies, and those that are under way."""

    def __init__(self, bytes_per_s: float, now_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._budget_bytes = 0.0
        self._read_s = now_s
        self._waiting: dict[tuple[int, int], Fill] = {}  # by chunk and peer, first come first
        self._under_way: dict[tuple[int, int], Fill] = {}
        self._moved_s: dict[int, float] = {}  # by peer: when its filling last went forward

    def add(self, fill: Fill) -> None:
        """Let a copy of a chunk wait for its turn."""
        key = (fill.chunk, fill.peer)
        if key not in self._under_way:
            self._waiting[key] = fill

    def forget(self, chunk: int, peer: int) -> None:
        """It is no longer wanted."""
        self._waiting.pop((chunk, peer), None)
        self._under_way.pop((chunk, peer), None)

    def done(self, chunk: int, peer: int, now_s: float) -> None:
        """The copy is in step."""
        self.forget(chunk, peer)
        self._moved_s[peer] = now_s

    def take(self, now_s: float) -> list[Fill]:
        """Those whose turn has come."""
        self._earn(now_s)
        taken = list(self._affordable())
        for fill in taken:
            key = (fill.chunk, fill.peer)
            if not self._is_under_way(fill.peer):
                self._moved_s[fill.peer] = now_s
            self._under_way[key] = self._waiting.pop(key)
        return taken

    def stalled(self, now_s: float, patience_s: float) -> set[int]:
        """Peers to whom something is under way and none of it has arrived for so long."""
        peers = {fill.peer for fill in self._under_way.values()}
        return {peer for peer in peers if now_s - self._moved_s[peer] > patience_s}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._under_way)

    def _earn(self, now_s: float) -> None:
        earned = (now_s - self._read_s) * self._bytes_per_s
        self._budget_bytes = min(self._budget_bytes + earned, _BURST_S * self._bytes_per_s)
        self._read_s = now_s

    def _affordable(self) -> Iterator[Fill]:
        """Spends the budget, which one chunk may take below zero: a large one has its turn too."""
        under_way: dict[int, int] = {}
        for fill in self._under_way.values():
            under_way[fill.peer] = under_way.get(fill.peer, 0) + fill.size_bytes
        for fill in self._waiting.values():
            if self._budget_bytes <= 0:
                return
            if under_way.get(fill.peer, 0) < _MOST_UNDER_WAY_BYTES:
                under_way[fill.peer] = under_way.get(fill.peer, 0) + fill.size_bytes
                self._budget_bytes -= fill.size_bytes
                yield fill

    def _is_under_way(self, peer: int) -> bool:
        return any(fill.peer == peer for fill in self._under_way.values())
