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
    for bucket in sorted(placement.buckets):
        crowd = joins.crowd(placement.buckets[bucket])
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
    """Let mirrors take over from primaries that lead more than their part; nothing is copied."""
    led = primary_bytes(placement, view, view.lasting(placement))
    places = dict(placement.buckets)
    while not _is_even(led):
        switch = _best_switch(places, view, led)
        if switch is None:
            break
        bucket, heir = switch
        primary = places[bucket].primary
        assert primary is not None
        led[primary] -= view.loads[bucket]
        led[heir] += view.loads[bucket]
        places[bucket] = promote(places[bucket], heir, keep=True)
    changed = {b: place for b, place in places.items() if place != placement.buckets[b]}
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
        fitting = [
            (self._view.loads[bucket], bucket)
            for bucket in self._placement.buckets
            if 0 < self._view.loads[bucket] < gap and self._may_move(bucket, source, target)
        ]
        below = [found for found in fitting if 2 * found[0] <= gap]
        best = max(below) if below else min(fitting, default=None)
        return None if best is None else best[1]

    def _may_move(self, bucket: int, source: int, target: int) -> bool:
        place = self._placement.buckets[bucket]
        if bucket in self._moved or source not in in_step(place) or target in place.copies:
            return False
        if (place.primary, target) in self._view.avoided:
            return False
        host = {server: self._placement.members[server].host for server in (source, target)}
        crowd = self._joins.crowd(place)
        return host[source] == host[target] or crowd[host[target]] < crowd[host[source]]


def _best_switch(
    places: Mapping[int, BucketPlace], view: View, led: Mapping[int, int]
) -> tuple[int, int] | None:
    """The bucket and the mirror whose promotion brings two servers nearest to each other."""
    best: tuple[int, int, int] | None = None
    for bucket, place in places.items():
        size = view.loads[bucket]
        for mirror in place.mirrors:
            if place.primary is not None and place.primary in led and mirror in led:
                gain = size * (led[place.primary] - led[mirror] - size)
                if gain > 0 and (best is None or gain > best[0]):
                    best = gain, bucket, mirror
    return None if best is None else best[1:]


def _is_even(loads: Mapping[int, int]) -> bool:
    if not loads:
        return True
    mean = sum(loads.values()) / len(loads)
    return all(abs(load - mean) <= _TOLERANCE * mean for load in loads.values())
