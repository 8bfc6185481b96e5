"""The copies of buckets: created where they lack, counted when in step, removed when spare.

Adam, section 3.3.3: missing copies are re-created on the remaining machines. A copy that is being
filled is *joining*; it becomes a mirror by its primary's word, for the very entry that it began
with. What is copied at a time is limited, so that updates keep the network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from manyhands.controller.failover import most_advanced, promote
from manyhands.controller.view import View, held_bytes, in_step, primary_bytes, with_places
from manyhands.parameter_server.placement import BucketPlace, Joining, Placement


@dataclass(frozen=True, slots=True)
class InStep:
    """A primary's word that from now on it acknowledges nothing without this joining copy."""

    primary: int
    bucket: int
    server: int
    since: int
    lease: int


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A primary's word that a copy does not answer it; `known` is the placement it spoke of."""

    primary: int
    server: int
    known: int


def accept_in_step(placement: Placement, claims: Iterable[InStep]) -> Placement:
    """Joining copies that are in step become mirrors; a word of another time is ignored."""
    changed: dict[int, BucketPlace] = {}
    for claim in claims:
        place = changed.get(claim.bucket, placement.buckets.get(claim.bucket))
        entry = Joining(claim.server, claim.since)
        if (
            place is not None
            and (place.primary, place.lease) == (claim.primary, claim.lease)
            and entry in place.joining
        ):
            changed[claim.bucket] = replace(
                place,
                mirrors=(*place.mirrors, claim.server),
                joining=tuple(joining for joining in place.joining if joining != entry),
            )
    return with_places(placement, changed)


def drop_suspects(placement: Placement, suspicions: Iterable[Suspicion], view: View) -> Placement:
    """Take copies out of the buckets of the primary that they don't answer, and of no other.

    A primary that none of several mirrors answers is the one that is cut off: a mirror leads on.
    """
    suspected: dict[int, dict[int, int]] = {}
    for suspicion in suspicions:
        suspected.setdefault(suspicion.primary, {})[suspicion.server] = suspicion.known
    led = primary_bytes(placement, view, view.lasting(placement))
    changed: dict[int, BucketPlace] = {}
    for bucket, place in placement.buckets.items():
        if place.primary in suspected and view.is_fresh(place.primary):
            after = _without_suspects(bucket, place, suspected[place.primary], view, led)
            if after != place:
                changed[bucket] = after
    return with_places(placement, changed)


def abandon(placement: Placement, entries: Collection[tuple[int, Joining]]) -> Placement:
    """Give up joining copies that have been filled for too long."""
    changed: dict[int, BucketPlace] = {}
    for bucket, entry in entries:
        place = changed.get(bucket, placement.buckets.get(bucket))
        if place is not None and entry in place.joining:
            changed[bucket] = replace(place, joining=tuple(j for j in place.joining if j != entry))
    return with_places(placement, changed)


def renew_joins(placement: Placement, before: Placement) -> Placement:
    """Let joins begin anew wherever the primary has changed: each entry is one primary's affair."""
    changed: dict[int, BucketPlace] = {}
    for bucket, place in placement.buckets.items():
        if place.joining and place.lease != before.buckets[bucket].lease:
            anew = tuple(Joining(joining.server, placement.version) for joining in place.joining)
            changed[bucket] = replace(place, joining=anew)
    return with_places(placement, changed)


def repair(placement: Placement, view: View) -> Placement:
    """Let copies join until every bucket has enough, the most endangered first."""
    lasting = view.lasting(placement)
    wanted = min(view.copies, len(lasting))
    joins = Joins(placement, view)
    for bucket in sorted(placement.buckets, key=lambda b: _danger(placement, view, b)):
        place = placement.buckets[bucket]
        kept = sum(server in lasting for server in place.copies)
        for _ in range(wanted - kept):
            if not joins.begin(bucket):
                break
    return joins.placement()


def trim(placement: Placement, view: View) -> Placement:
    """Remove copies that are more than enough: first those on servers that leave."""
    lasting = view.lasting(placement)
    held = held_bytes(placement, view, view.alive)
    changed: dict[int, BucketPlace] = {}
    for bucket, place in sorted(placement.buckets.items()):
        if not view.is_fresh(place.primary):
            continue
        after = _without_leaving(place, view, lasting)
        staying = lasting.intersection(in_step(after))
        if all(view.is_fresh(server) for server in staying):  # else there is no hurry
            for _ in range(len(staying) - view.copies):
                server = _most_dispensable(placement, after, lasting, held)
                held[server] -= view.loads[bucket]
                after = _released(after, server, lasting, bucket, view)
        if after != place:
            changed[bucket] = after
    return with_places(placement, changed)


class Joins:
    """Joins that begin with the next placement, within the limits; the placement as it grows."""

    def __init__(self, placement: Placement, view: View) -> None:
        self._start = placement
        self._view = view
        self._lasting = view.lasting(placement)
        self._changed: dict[int, BucketPlace] = {}
        self._flow: Counter[tuple[str, int]] = Counter()
        self.held = held_bytes(placement, view, self._lasting)
        for bucket, place in placement.buckets.items():
            for joining in place.joining:
                self._count(bucket, place.primary, joining.server)

    def placement(self) -> Placement:
        return with_places(self._start, self._changed)

    def place(self, bucket: int) -> BucketPlace:
        return self._changed.get(bucket, self._start.buckets[bucket])

    def begin(self, bucket: int) -> bool:
        """Let one more copy join where it is best; False when none may now."""
        place = self.place(bucket)
        fitting = self.candidates(bucket)
        ready = [server for server in fitting if self.has_room(bucket, server)]
        if not ready:
            return False
        self.add(bucket, min(ready, key=lambda server: (self.held[server], server)))
        return self.place(bucket) != place

    def candidates(self, bucket: int) -> list[int]:
        """Servers that a copy may be put on: of the hosts with the fewest copies of the bucket."""
        place = self.place(bucket)
        if place.primary not in self._view.alive:
            return []
        taken = set(place.copies)
        free = [
            server
            for server in sorted(self._lasting - taken)
            if (place.primary, server) not in self._view.avoided
        ]
        crowd = self.crowd(place)
        fewest = min((crowd[self._host(server)] for server in free), default=0)
        return [server for server in free if crowd[self._host(server)] == fewest]

    def crowd(self, place: BucketPlace) -> Counter[str]:
        """How many copies of a bucket each host has, of those that stay."""
        return Counter(self._host(server) for server in place.copies if server in self._lasting)

    def has_room(self, bucket: int, server: int) -> bool:
        """Whether the limit lets this bucket be copied to the server now."""
        primary = self.place(bucket).primary
        assert primary is not None
        size = self._view.loads[bucket]
        flows = (self._flow["to", server], self._flow["from", primary])
        return all(not flow or flow + size <= self._view.join_bytes for flow in flows)

    def add(self, bucket: int, server: int) -> None:
        """Let this server join."""
        place = self.place(bucket)
        entry = Joining(server, self._start.version)
        self._changed[bucket] = replace(place, joining=(*place.joining, entry))
        self.held[server] += self._view.loads[bucket]
        self._count(bucket, place.primary, server)

    def _count(self, bucket: int, primary: int | None, server: int) -> None:
        self._flow["to", server] += self._view.loads[bucket]
        if primary is not None:
            self._flow["from", primary] += self._view.loads[bucket]

    def _host(self, server: int) -> str:
        return self._start.members[server].host


def _without_suspects(
    bucket: int,
    place: BucketPlace,
    suspects: dict[int, int],
    view: View,
    led: dict[int, int],
) -> BucketPlace:
    answering = tuple(mirror for mirror in place.mirrors if mirror not in suspects)
    heard = tuple(mirror for mirror in place.mirrors if view.is_fresh(mirror))
    if not answering and len(heard) > 1:
        chosen = most_advanced(bucket, heard, view, led)
        led[chosen] = led.get(chosen, 0) + view.loads[bucket]
        return promote(replace(place, mirrors=heard), chosen, keep=False)
    # A join that the primary had not heard of can't be what it complains of.
    filling = tuple(j for j in place.joining if j.since > suspects.get(j.server, -1))
    return replace(place, mirrors=answering, joining=filling)


def _danger(placement: Placement, view: View, bucket: int) -> tuple[int, int, int]:
    heard = sum(server in view.alive for server in in_step(placement.buckets[bucket]))
    return heard, -view.loads[bucket], bucket


def _without_leaving(place: BucketPlace, view: View, lasting: frozenset[int]) -> BucketPlace:
    """Without mirrors on servers that leave, when there are enough others in step."""
    if lasting.issuperset(place.copies):
        return place
    filling = tuple(joining for joining in place.joining if joining.server in lasting)
    enough = sum(server in lasting for server in in_step(place)) >= min(view.copies, len(lasting))
    if place.primary not in lasting or not enough:
        return replace(place, joining=filling)
    staying = tuple(mirror for mirror in place.mirrors if mirror in lasting)
    return replace(place, mirrors=staying, joining=filling)


def _most_dispensable(
    placement: Placement, place: BucketPlace, lasting: frozenset[int], held: dict[int, int]
) -> int:
    """A copy on a host with another, then on the fullest server, then one that is no primary."""
    servers = [server for server in in_step(place) if server in lasting]
    crowd = Counter(placement.members[server].host for server in servers)
    return max(
        servers,
        key=lambda server: (
            crowd[placement.members[server].host],
            held[server],
            server != place.primary,
            server,
        ),
    )


def _released(
    place: BucketPlace, server: int, lasting: frozenset[int], bucket: int, view: View
) -> BucketPlace:
    if server == place.primary:
        heirs = tuple(mirror for mirror in place.mirrors if mirror in lasting)
        return promote(place, most_advanced(bucket, heirs, view, {}), keep=False)
    return replace(place, mirrors=tuple(mirror for mirror in place.mirrors if mirror != server))
