"""What a decision about placement sees: who is heard, how large buckets are, what was reported.

A decision is a pure function from a placement and a view to the next placement (`policies.py`). The
placement is the truth that the registry holds; the view is one controller's impression of now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from manyhands.parameter_server.placement import BucketPlace, Placement


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """One moment as the controller sees it.

    A server is missed only after a while, so one that counts as `alive` may be dead already. On the
    word of a primary, or for its sake, a complete copy is given up only while it is `fresh`.

    `avoided` holds pairs of servers, both ways round, that did not reach each other of late. No
    more than `join_bytes` are copied to one server, and from one, at a time; one bucket always is.
    """

    alive: frozenset[int]
    fresh: frozenset[int] | None = None  # heard this very moment; None: all that are alive
    loads: Mapping[int, int]  # bytes of each bucket
    copies: int
    progress: Mapping[int, Mapping[int, int]] = field(default_factory=dict)  # server, bucket
    avoided: frozenset[tuple[int, int]] = frozenset()
    join_bytes: int = 64 << 20

    def is_fresh(self, server: int | None) -> bool:
        """Whether it was heard this very moment."""
        return server in (self.alive if self.fresh is None else self.fresh)

    def lasting(self, placement: Placement) -> frozenset[int]:
        """Servers that are heard and stay: those that copies may be put on."""
        return frozenset(
            server
            for server, member in placement.members.items()
            if server in self.alive and not member.draining
        )


def with_places(placement: Placement, places: Mapping[int, BucketPlace]) -> Placement:
    """The placement with these buckets changed."""
    return replace(placement, buckets={**placement.buckets, **places}) if places else placement


def in_step(place: BucketPlace) -> tuple[int, ...]:
    """Servers that hold every acknowledged update of a bucket."""
    return place.mirrors if place.primary is None else (place.primary, *place.mirrors)


def held_bytes(placement: Placement, view: View, servers: Iterable[int]) -> dict[int, int]:
    """The bytes of all copies on each of these servers."""
    held = dict.fromkeys(servers, 0)
    for bucket, place in placement.buckets.items():
        for server in place.copies:
            if server in held:
                held[server] += view.loads[bucket]
    return held


def primary_bytes(placement: Placement, view: View, servers: Iterable[int]) -> dict[int, int]:
    """The bytes that each of these servers is primary of."""
    led = dict.fromkeys(servers, 0)
    for bucket, place in placement.buckets.items():
        if place.primary in led:
            led[place.primary] += view.loads[bucket]
    return led
