"""What a new placement tells a person: who took over from whom, and when all copies are back.

Pure but for the memory of one moment: when copies were first missed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from manyhands.parameter_server.placement import BucketPlace, Placement
from manyhands.telemetry.events import CopiesRestored, Event, PrimaryMoved, StoreRestored


class PlacementStory:
    """Turns one placement after another into events. Not thread-safe; time is an argument.

    `copies` is how many of each bucket there are to be, where there are as many servers.
    """

    def __init__(self, copies: int, write_back_s: float) -> None:
        self._copies = copies
        self._write_back_s = write_back_s
        self._before: Placement | None = None
        self._missed_at: float | None = None

    def go_on(self, placement: Placement, now: float) -> list[Event]:
        """What happened between the last placement and this one."""
        before, self._before = self._before, placement
        events: list[Event] = []
        if before is not None:
            events += self._moves(before, placement)
        events += self._copies_back(placement, now)
        return events

    def _moves(self, before: Placement, after: Placement) -> list[Event]:
        heirs: dict[int, Counter[int]] = defaultdict(Counter)
        restored: Counter[int] = Counter()
        for bucket, place in after.buckets.items():
            earlier = before.buckets.get(bucket)
            if earlier is None or place.primary is None or place.lease == earlier.lease:
                continue
            if place.origin == "store":
                restored[place.primary] += 1
            elif earlier.primary is not None:
                heirs[earlier.primary][place.primary] += 1
        events: list[Event] = [
            PrimaryMoved(server=server, buckets=by.total(), by=tuple(sorted(by)))
            for server, by in sorted(heirs.items())
        ]
        if restored:
            events.append(
                StoreRestored(
                    buckets=restored.total(),
                    servers=tuple(sorted(restored)),
                    write_back_s=self._write_back_s,
                )
            )
        return events

    def _copies_back(self, placement: Placement, now: float) -> list[Event]:
        if any(_in_step(place) < self._copies for place in placement.buckets.values()):
            self._missed_at = now if self._missed_at is None else self._missed_at
            return []
        missed, self._missed_at = self._missed_at, None
        if missed is None:
            return []
        return [CopiesRestored(copies=self._copies, seconds=now - missed)]


def sole_holders(placement: Placement, living: Mapping[int, str]) -> frozenset[int]:
    """Servers that hold the only complete copy of some bucket.

    `living` are the incarnations of the processes that run: a placement may not know of deaths yet.
    """
    whole = {
        server
        for server, member in placement.members.items()
        if living.get(server) == member.incarnation
    }
    holders = [whole & {place.primary, *place.mirrors} for place in placement.buckets.values()]
    return frozenset(next(iter(one)) for one in holders if len(one) == 1)


def is_empty(placement: Placement, server: int) -> bool:
    """Whether no bucket has a copy on this server."""
    return all(server not in place.copies for place in placement.buckets.values())


def _in_step(place: BucketPlace) -> int:
    return len(place.mirrors) + (place.primary is not None)
