"""Emptying a server that is to leave: others lead its buckets, then others hold its copies.

In this order: a mirror in step takes over what the server leads (`lead_away`), copies join
elsewhere (`copies.repair`, which does not count those of a server that leaves), and when there are
enough of them its own are given up (`copies.trim`). At no time has a bucket fewer copies than it
should, unless too few servers stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from manyhands.controller.failover import most_advanced, promote
from manyhands.controller.view import View, primary_bytes, with_places
from manyhands.parameter_server.placement import BucketPlace, Placement


def mark(placement: Placement, drains: Mapping[int, bool]) -> Placement:
    """Note which servers are to leave, and which are to stay after all."""
    changed = {
        server: replace(placement.members[server], draining=draining)
        for server, draining in drains.items()
        if server in placement.members and placement.members[server].draining != draining
    }
    return replace(placement, members={**placement.members, **changed}) if changed else placement


def lead_away(placement: Placement, view: View) -> Placement:
    """Promote a mirror that stays wherever a server that leaves is primary."""
    lasting = view.lasting(placement)
    led = primary_bytes(placement, view, lasting)
    changed: dict[int, BucketPlace] = {}
    for bucket, place in sorted(placement.buckets.items()):
        heirs = tuple(mirror for mirror in place.mirrors if mirror in lasting)
        if place.primary in view.alive and place.primary not in lasting and heirs:
            heir = most_advanced(bucket, heirs, view, led)
            led[heir] += view.loads[bucket]
            changed[bucket] = promote(place, heir, keep=True)
    return with_places(placement, changed)


def is_empty(placement: Placement, server: int) -> bool:
    """Whether no bucket has a copy there, so that the server can be ended."""
    return all(server not in place.copies for place in placement.buckets.values())
