"""Even loads: where copies are put first, what a new server takes over, which mirrors lead.

Adam, section 3.3.1: buckets are spread evenly over servers. Here the spread is kept when servers
come and go, with as few moves as it takes: nothing moves while every server is within a tenth of
the mean, and every move brings the two servers concerned nearer to each other, so moving ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from manyhands.controller.copies import Joins
from manyhands.controller.failover import promote
from manyhands.controller.view import View, in_step, primary_bytes, with_places
from manyhands.parameter_server.placement import BucketPlace, Member, Placement

_TOLERANCE = 0.1


def initial(members: Mapping[int, Member], homes: Mapping[int, int], view: View) -> Placement:
    """The first placement: primaries at home, mirrors spread by hosts and bytes, all empty."""
    held = dict.fromkeys(sorted(members), 0)
    for bucket, home in homes.items():
        held[home] += view.loads[bucket]
    places: dict[int, BucketPlace] = {}
    for bucket in sorted(homes, key=lambda bucket: (-view.loads[bucket], bucket)):
        mirrors: list[int] = []
        crowd = Counter([members[homes[bucket]].host])
        for _ in range(min(view.copies, len(members)) - 1):
            free = [server for server in held if server not in (homes[bucket], *mirrors)]
            chosen = min(
                free, key=lambda server: (crowd[members[server].host], held[server], server)
            )
            mirrors.append(chosen)
            crowd[members[chosen].host] += 1
            held[chosen] += view.loads[bucket]
        places[bucket] = BucketPlace(homes[bucket], lease=1, mirrors=tuple(mirrors))
    return Placement(version=1, members=dict(members), buckets=dict(sorted(places.items())))


def is_settled(placement: Placement, view: View) -> bool:
    """Whether every bucket has its copies, in step, on servers that stay: the time to even out."""
    lasting = view.lasting(placement)
    wanted = min(view.copies, len(lasting))
    return all(
        not place.joining
        and len(place.mirrors) + 1 == wanted
        and lasting.issuperset(in_step(place))
        for place in placement.buckets.values()
    )


def rebalance(placement: Placement, view: View) -> Placement:
    """Let copies join where hosts or bytes are uneven; `copies.trim` removes what they replace."""
    joins = Joins(placement, view)
    for bucket, place in sorted(placement.buckets.items()):
        crowd = joins.crowd(place)
        if max(crowd.values()) == 1:
            continue
        better = [
            server
            for server in joins.candidates(bucket)
            if crowd[placement.members[server].host] + 1 < max(crowd.values())
        ]
        if better and joins.has_room(bucket, better[0]):
            joins.begin(bucket)
    moves = _Moves(joins, placement, view)
    while moves.make_one():
        pass
    return joins.placement()


def share_leading(placement: Placement, view: View) -> Placement:
    """Let mirrors take over from primaries that lead more than their part; nothing is copied.

    One pass from the largest bucket to the smallest; another decision makes the next, if it helps.
    """
    led = primary_bytes(placement, view, view.lasting(placement))
    changed: dict[int, BucketPlace] = {}
    for bucket, place in sorted(placement.buckets.items(), key=lambda b: -view.loads[b[0]]):
        if _is_even(led):
            break
        heirs = [mirror for mirror in place.mirrors if mirror in led]
        if place.primary is None or place.primary not in led or not heirs:
            continue
        heir = min(heirs, key=lambda mirror: (led[mirror], mirror))
        if 0 < view.loads[bucket] < led[place.primary] - led[heir]:
            led[place.primary] -= view.loads[bucket]
            led[heir] += view.loads[bucket]
            changed[bucket] = promote(place, heir, keep=True)
    return with_places(placement, changed)


class _Moves:
    """Moves of copies from full servers to empty ones, in the order in which they help most."""

    def __init__(self, joins: Joins, placement: Placement, view: View) -> None:
        self._joins = joins
        self._placement = placement
        self._view = view
        self._held = dict(joins.held)
        self._moved: set[int] = {
            bucket for bucket, place in placement.buckets.items() if joins.place(bucket) != place
        }
        self._buckets: dict[int, list[int]] = {server: [] for server in self._held}
        for bucket in sorted(placement.buckets, key=lambda bucket: (-view.loads[bucket], bucket)):
            for server in in_step(placement.buckets[bucket]):
                if server in self._buckets and view.loads[bucket]:
                    self._buckets[server].append(bucket)

    def make_one(self) -> bool:
        """Let one more bucket begin to move; False when none should or may."""
        if _is_even(self._held):
            return False
        for target in sorted(self._held, key=lambda server: (self._held[server], server)):
            for source in sorted(self._held, key=lambda server: (-self._held[server], server)):
                bucket = self._best_bucket(source, target)
                if bucket is not None:
                    return self._begin(bucket, source, target)
        return False

    def _begin(self, bucket: int, source: int, target: int) -> bool:
        if not self._joins.has_room(bucket, target):
            return False
        self._joins.add(bucket, target)
        self._moved.add(bucket)
        self._held[source] -= self._view.loads[bucket]
        self._held[target] += self._view.loads[bucket]
        return True

    def _best_bucket(self, source: int, target: int) -> int | None:
        """The largest bucket that does not overshoot the middle, or the smallest that helps."""
        gap = self._held[source] - self._held[target]
        smallest = None
        for bucket in self._buckets[source]:  # the largest first
            size = self._view.loads[bucket]
            if size < gap and self._may_move(bucket, source, target):
                if 2 * size <= gap:
                    return bucket
                smallest = bucket
        return smallest

    def _may_move(self, bucket: int, source: int, target: int) -> bool:
        place = self._placement.buckets[bucket]
        if bucket in self._moved or target in place.copies:
            return False
        if (place.primary, target) in self._view.avoided:
            return False
        host = {server: self._placement.members[server].host for server in (source, target)}
        crowd = self._joins.crowd(place)
        return host[source] == host[target] or crowd[host[target]] < crowd[host[source]]


def _is_even(loads: Mapping[int, int]) -> bool:
    if not loads:
        return True
    mean = sum(loads.values()) / len(loads)
    return all(abs(load - mean) <= _TOLERANCE * mean for load in loads.values())
