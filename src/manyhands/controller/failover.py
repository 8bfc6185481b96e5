"""What becomes of a bucket when a server is lost: who becomes its primary, and when nobody may.

Adam, section 3.3.3; safety by docs/protocol.md: an acknowledged update is on the primary and on
every mirror, so any of them may lead on, and no other. A copy that is only silent still holds its
updates and is waited for when there is no other; a copy whose process is dead holds nothing.
"""

from __future__ import annotations

from dataclasses import replace

from manyhands.controller.view import View, primary_bytes, with_places
from manyhands.parameter_server.placement import BucketPlace, Member, Placement


def admit(placement: Placement, member: Member) -> Placement:
    """Take in a server, empty: the copies of an earlier process of its number are void."""
    known = placement.members.get(member.server)
    if known is not None and known.incarnation == member.incarnation:
        return placement
    if known is not None:
        member = replace(member, draining=known.draining)
        placement = bury(placement, known.server, known.incarnation)
    return replace(placement, members={**placement.members, member.server: member})


def bury(placement: Placement, server: int, incarnation: str) -> Placement:
    """Take out a server whose process is known to be dead, and void its copies."""
    known = placement.members.get(server)
    if known is None or known.incarnation != incarnation:
        return placement
    members = {number: member for number, member in placement.members.items() if number != server}
    voided = {
        bucket: _without(place, server, primary=None if place.primary == server else place.primary)
        for bucket, place in placement.buckets.items()
    }
    return replace(with_places(placement, voided), members=members)


def lose(placement: Placement, view: View) -> Placement:
    """Go on without the servers that are not heard, wherever a copy in step is left that is."""
    led = primary_bytes(placement, view, view.lasting(placement) or view.alive)
    changed: dict[int, BucketPlace] = {}
    for bucket, place in placement.buckets.items():
        after = _go_on(bucket, place, view, led)
        if after != place:
            changed[bucket] = after
            if after.primary != place.primary and after.primary in led:
                led[after.primary] += view.loads[bucket]
    return with_places(placement, changed)


def promote(place: BucketPlace, server: int, *, keep: bool) -> BucketPlace:
    """Make a mirror the primary, under a new lease; `keep` the old one, as a mirror.

    The old primary holds every update that was acknowledged, so it may be a mirror at once.
    """
    if server not in place.mirrors:
        raise ValueError(f"server {server} is no mirror and can't become primary")
    others = tuple(mirror for mirror in place.mirrors if mirror != server)
    if keep and place.primary is not None:
        others += (place.primary,)
    return replace(place, primary=server, lease=place.lease + 1, mirrors=others, origin="held")


def _go_on(bucket: int, place: BucketPlace, view: View, led: dict[int, int]) -> BucketPlace:
    if place.primary is not None and view.alive.issuperset(place.copies):
        return place
    heard = tuple(mirror for mirror in place.mirrors if mirror in view.alive)
    filling = tuple(joining for joining in place.joining if joining.server in view.alive)
    if place.primary in view.alive:
        kept = heard if view.is_fresh(place.primary) else place.mirrors
        return replace(place, mirrors=kept, joining=filling)
    if heard:
        fresh = tuple(mirror for mirror in heard if view.is_fresh(mirror))
        chosen = most_advanced(bucket, fresh or heard, view, led)
        if not fresh:  # it may be gone as well: nobody is given up for its sake
            return promote(place, chosen, keep=True)
        rest = replace(place, primary=None, mirrors=heard, joining=filling)
        return promote(rest, chosen, keep=False)
    if place.primary is None and not place.mirrors and led:
        chosen = min(led, key=lambda server: (led[server], server))
        return BucketPlace(primary=chosen, lease=place.lease + 1, origin="store")
    return place  # whoever holds it is silent: wait


def most_advanced(bucket: int, mirrors: tuple[int, ...], view: View, led: dict[int, int]) -> int:
    """The mirror that has the most updates by its own word, then the one that leads least."""
    return min(
        mirrors,
        key=lambda mirror: (
            -view.progress.get(mirror, {}).get(bucket, -1),
            mirror not in led,  # one that leaves is better than none
            led.get(mirror, 0),
            mirror,
        ),
    )


def _without(place: BucketPlace, server: int, *, primary: int | None) -> BucketPlace:
    return replace(
        place,
        primary=primary,
        mirrors=tuple(mirror for mirror in place.mirrors if mirror != server),
        joining=tuple(joining for joining in place.joining if joining.server != server),
    )
