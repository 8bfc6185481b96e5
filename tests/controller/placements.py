"""Placements for tests: made up, drawn at random, led through decisions until nothing changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import HealthCheck
from hypothesis import strategies as st

from manyhands.controller import balance, policies
from manyhands.controller.copies import InStep, Suspicion
from manyhands.controller.policies import Reports
from manyhands.controller.view import View
from manyhands.parameter_server.placement import BucketPlace, Joining, Member, Placement
from manyhands.transport.endpoint import Endpoint

MB = 1_000_000


def member(server: int, *, host: str = "one", incarnation: str = "a", **words) -> Member:
    door = Endpoint("127.0.0.1", 4000 + server)
    return Member(server, incarnation, door, door, host, **words)


def members(servers: int, *, hosts: Sequence[str] = ("one",)) -> dict[int, Member]:
    return {n: member(n, host=hosts[n % len(hosts)]) for n in range(servers)}


def view_of(placement: Placement | Mapping[int, Member], **words) -> View:
    """A view in which everybody is heard and every bucket has a megabyte, unless told otherwise."""
    there = placement.members if isinstance(placement, Placement) else placement
    buckets = placement.buckets if isinstance(placement, Placement) else ()
    settings = {"alive": frozenset(there), "loads": dict.fromkeys(buckets, MB), "copies": 3}
    return View(**(settings | words))


def first(
    servers: int, buckets: int, *, copies: int = 3, hosts: Sequence[str] = ("one",)
) -> Placement:
    """A first placement of buckets of one megabyte."""
    there = members(servers, hosts=hosts)
    homes = {bucket: bucket % servers for bucket in range(buckets)}
    view = View(alive=frozenset(there), loads=dict.fromkeys(homes, MB), copies=copies)
    return balance.initial(there, homes, view)


def claims(placement: Placement) -> tuple[InStep, ...]:
    """What primaries would say when every copy that joins has been filled."""
    return tuple(
        InStep(place.primary, bucket, joining.server, joining.since, place.lease)
        for bucket, place in placement.buckets.items()
        if place.primary is not None
        for joining in place.joining
    )


def at_rest(placement: Placement, view: View, *, most: int = 400) -> Placement:
    """What becomes of a placement when copies are filled and nothing else happens."""
    for _ in range(most):
        after = policies.decide(placement, view, Reports(in_step=claims(placement)), calm=True)
        if after is None:
            return placement
        placement = after
    raise AssertionError(f"still changing after {most} decisions: {placement}")


# A test may take as long as the machine needs.
PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
SERVERS = st.integers(0, 5)
NUMBERS = st.integers(0, 6)


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """Any placement that could be in a registry."""
    servers = draw(st.lists(SERVERS, min_size=1, unique=True))
    there = {
        n: member(
            n,
            host=draw(st.sampled_from("xyz")),
            incarnation=draw(st.sampled_from("ab")),
            draining=draw(st.booleans()),
        )
        for n in servers
    }
    version = draw(st.integers(1, 9))
    places = st.builds(
        _place,
        st.permutations(servers),
        st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 2)),
        st.integers(1, 5),
        st.integers(1, version),
        st.sampled_from(("new", "held", "store")),
    )
    return Placement(version, there, draw(st.dictionaries(st.integers(0, 7), places, max_size=4)))


def _place(
    servers: list[int], counts: tuple[bool, int, int], lease: int, since: int, origin: str
) -> BucketPlace:
    has_primary, mirrors, joining = counts
    primary = servers[0] if has_primary else None
    rest = servers[1:] if has_primary else servers
    filling = tuple(Joining(n, since) for n in rest[mirrors : mirrors + joining])
    return BucketPlace(primary, lease, tuple(rest[:mirrors]), filling, origin)


@st.composite
def views(draw: st.DrawFn, placement: Placement) -> View:
    pairs = draw(st.frozensets(st.tuples(SERVERS, SERVERS), max_size=3))
    alive = draw(st.frozensets(SERVERS))
    return View(
        alive=alive,
        fresh=draw(st.none() | st.frozensets(SERVERS).map(alive.intersection)),
        loads={bucket: draw(st.integers(0, 9)) * MB for bucket in placement.buckets},
        copies=draw(st.integers(1, 4)),
        progress=draw(
            st.dictionaries(SERVERS, st.dictionaries(NUMBERS, NUMBERS, max_size=3), max_size=3)
        ),
        avoided=pairs | {(b, a) for a, b in pairs},
        join_bytes=draw(st.integers(0, 20)) * MB,
    )


@st.composite
def reports(draw: st.DrawFn, placement: Placement) -> Reports:
    """What may be heard: much of it of another time, or nonsense."""
    real = claims(placement)
    stale = [replace(c, lease=c.lease - 1) for c in real] + [
        replace(c, since=c.since + draw(st.sampled_from((-1, 1)))) for c in real
    ]
    strange = st.builds(InStep, SERVERS, NUMBERS, SERVERS, NUMBERS, NUMBERS)
    said = st.sampled_from([*real, *stale]) | strange if real else strange
    return Reports(
        arrived=tuple(
            member(n, host="x", incarnation=draw(st.sampled_from("abc")))
            for n in draw(st.lists(SERVERS, unique=True, max_size=3))
        ),
        dead=tuple(draw(st.lists(st.tuples(SERVERS, st.sampled_from("ab")), max_size=3))),
        drains=draw(st.dictionaries(SERVERS, st.booleans(), max_size=2)),
        in_step=tuple(draw(st.lists(said, max_size=6))),
        suspicions=tuple(
            draw(st.lists(st.builds(Suspicion, SERVERS, SERVERS, NUMBERS), max_size=3))
        ),
        overdue=tuple(
            (bucket, joining)
            for bucket, place in placement.buckets.items()
            for joining in place.joining
            if draw(st.booleans())
        ),
    )
