"""Leases of small pieces of an epoch, and when an epoch is over (Adam, section 3.2.5).

No replica owns a part of the data: each asks for a piece when it has room for one, so a fast
replica takes more, and the pieces of a lost one return to the pool. Decides and remembers; sends
nothing and knows no clock, so every rule here is tested without a process.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to train on one piece of an epoch."""

    epoch: int
    piece: int


@dataclass(slots=True)
class _Holder:
    """What is known of one replica: what it trains on, what it asked for."""

    leases: dict[Lease, int] = field(default_factory=dict)  # -> pieces finished when it was given
    asked: int = 0
    retired: bool = False


class LeaseDesk:
    """Hands out the pieces of the epochs that are open. Not thread-safe.

    `share` of the replicas must have finished for an epoch to be over. The first `warm_pieces` of
    the run go to one replica alone (DistBelief's warm start). With a `bound`, a replica waits while
    another still trains on a piece that it was given more than `bound` finished pieces ago.
    """

    def __init__(
        self, pieces: int, *, share: float, warm_pieces: int = 0, bound: int | None = None
    ) -> None:
        self._pieces = pieces
        self._share = share
        self._warm_pieces = warm_pieces
        self._bound = bound
        self._pool: deque[Lease] = deque()
        self._holders: dict[int, _Holder] = {}
        self._finished: dict[int, int] = {}
        self._finished_in_all = 0
        self._over: set[int] = set()

    def open(self, epoch: int) -> None:
        """Add the pieces of an epoch to the pool, behind what is left of the one before."""
        if epoch not in self._finished:
            self._finished[epoch] = 0
            self._pool.extend(Lease(epoch, piece) for piece in range(self._pieces))

    def join(self, replica: int) -> None:
        """Let a replica ask for pieces."""
        self._holders[replica] = _Holder()

    def leave(self, replica: int) -> int:
        """Forget a replica; how many of its pieces went back to the pool.

        Pieces of an epoch that is over are not trained on again: that epoch counted without them.
        """
        holder = self._holders.get(replica, _Holder())
        returned = [lease for lease in holder.leases if not self.is_over(lease.epoch)]
        self._holders.pop(replica, None)
        self._pool.extendleft(reversed(returned))
        return len(returned)

    def retire(self, replica: int) -> None:
        """Give a replica that is going to leave nothing more, and don't wait for it."""
        if replica in self._holders:
            self._holders[replica].retired = True

    def skip_warm_start(self) -> None:
        """Let every replica begin: the run has its warm start behind it."""
        self._warm_pieces = 0

    def ask(self, replica: int) -> None:
        """Remember that a replica has room for one more piece."""
        if replica in self._holders:
            self._holders[replica].asked += 1

    def grants(self) -> list[tuple[int, Lease]]:
        """The leases that can be given now, each replica in turn; they count as given."""
        given: list[tuple[int, Lease]] = []
        while self._pool:
            able = [number for number in sorted(self._holders) if self._may_have_one(number)]
            if not able:
                break
            for number in able[: len(self._pool)]:
                lease = self._pool.popleft()
                self._holders[number].asked -= 1
                self._holders[number].leases[lease] = self._finished_in_all
                given.append((number, lease))
        return given

    def finish(self, replica: int, lease: Lease) -> bool:
        """Count a piece as trained; False when the replica didn't hold it any more."""
        holder = self._holders.get(replica)
        if holder is None or holder.leases.pop(lease, None) is None:
            return False
        self._finished[lease.epoch] += 1
        self._finished_in_all += 1
        return True

    def give_back(self, replica: int, lease: Lease) -> None:
        """Return a piece that a replica will not train on."""
        holder = self._holders.get(replica)
        if holder is None or lease not in holder.leases:
            return
        over = self.is_over(lease.epoch)
        del holder.leases[lease]
        if not over:
            self._pool.appendleft(lease)

    def is_over(self, epoch: int) -> bool:
        """Whether nothing of the epoch is left to give and enough replicas are done with it.

        Once over, an epoch stays so, whoever comes or goes.
        """
        if epoch not in self._over and self._is_done(epoch):
            self._over.add(epoch)
        return epoch in self._over

    def _is_done(self, epoch: int) -> bool:
        if epoch not in self._finished:
            return False
        held = {number: self._held_of(epoch, number) for number in self._holders}
        if self._finished[epoch] + sum(held.values()) < self._pieces:  # the rest is in the pool
            return False
        if self._finished[epoch] == self._pieces:
            return True
        staying = self._staying
        done = sum(not held[number] for number in staying)
        return bool(staying) and done >= math.ceil(self._share * len(staying))

    def _held_of(self, epoch: int, number: int) -> int:
        return sum(lease.epoch == epoch for lease in self._holders[number].leases)

    def finished(self, epoch: int) -> int:
        """Pieces of the epoch that were trained on."""
        return self._finished.get(epoch, 0)

    @property
    def _staying(self) -> list[int]:
        return [number for number, holder in self._holders.items() if not holder.retired]

    def held_by(self, replica: int) -> int:
        """Pieces that a replica trains on or has fetched."""
        holder = self._holders.get(replica)
        return len(holder.leases) if holder else 0

    def _may_have_one(self, number: int) -> bool:
        holder = self._holders[number]
        if not holder.asked or holder.retired:
            return False
        if self._finished_in_all < self._warm_pieces and number != min(self._staying):
            return False
        return self._bound is None or not self._is_too_far_ahead(number)

    def _is_too_far_ahead(self, number: int) -> bool:
        assert self._bound is not None
        oldest = min(
            (
                given
                for other, holder in self._holders.items()
                if other != number
                for given in holder.leases.values()
            ),
            default=self._finished_in_all,
        )
        return self._finished_in_all - oldest > self._bound
