"""What a controller says when it is asked how things are: numbers, for people and drivers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manyhands.controller import draining
from manyhands.controller.view import in_step
from manyhands.parameter_server.placement import Placement


def status(
    placement: Placement | None,
    alive: frozenset[int],
    loads: Mapping[int, int],
    copies: int,
) -> dict[str, Any]:
    """Each server's part, and how many copies lack."""
    if placement is None:
        return {
            "version": 0,
            "heard": sorted(alive),
            "servers": {},
            "buckets": 0,
            "without_primary": 0,
            "missing_copies": 0,
        }
    places = placement.buckets.values()
    return {
        "version": placement.version,
        "heard": sorted(alive),
        "servers": {
            str(server): _part(placement, server, alive, loads) for server in placement.members
        },
        "buckets": len(placement.buckets),
        "without_primary": sum(place.primary not in alive for place in places),
        "missing_copies": sum(max(0, copies - len(in_step(place))) for place in places),
    }


def _part(
    placement: Placement, server: int, alive: frozenset[int], loads: Mapping[int, int]
) -> dict[str, Any]:
    member = placement.members[server]
    places = placement.buckets.items()
    return {
        "incarnation": member.incarnation,
        "host": member.host,
        "alive": server in alive,
        "draining": member.draining,
        "drained": member.draining and draining.is_empty(placement, server),
        "primaries": sum(place.primary == server for _, place in places),
        "mirrors": sum(server in place.mirrors for _, place in places),
        "joining": sum(server in [j.server for j in place.joining] for _, place in places),
        "bytes": sum(loads[bucket] for bucket, place in places if server in in_step(place)),
    }
