"""Placements under hypothesis: what is written as JSON is read back; nothing else is believed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.errors import ProtocolError
from manyhands.parameter_server.placement import BucketPlace, Joining, Member, Placement
from manyhands.transport.endpoint import Endpoint

SERVERS = st.integers(0, 5)
ENDPOINTS = st.builds(
    Endpoint,
    host=st.sampled_from(["127.0.0.1", "::1", "node-7"]),
    port=st.integers(1, 65535),
    unix=st.none() | st.text("ab-é", max_size=5),
    tls=st.booleans(),
)


@st.composite
def places(draw: st.DrawFn) -> BucketPlace:
    servers = draw(st.lists(SERVERS, unique=True, max_size=4))
    cut = draw(st.integers(0, len(servers)))
    copies, joining = servers[:cut], servers[cut:]
    primary = copies.pop(0) if copies and draw(st.booleans()) else None
    return BucketPlace(
        primary,
        draw(st.integers(1, 2**32 - 1)),
        tuple(copies),
        tuple(Joining(server, draw(st.integers(1, 99))) for server in joining),
        draw(st.sampled_from(["new", "held", "store"])),
    )


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    members = {
        server: Member(
            server,
            draw(st.text("ab-é", max_size=8)),
            draw(ENDPOINTS),
            draw(ENDPOINTS),
            draw(st.text("ab-é", max_size=8)),
            draw(st.booleans()),
        )
        for server in draw(st.sets(SERVERS))
    }
    buckets = draw(st.dictionaries(st.integers(0, 16383), places(), max_size=6))
    return Placement(draw(st.integers(1, 2**40)), members, buckets)


@given(placements())
def test_a_placement_survives_json(placement: Placement) -> None:
    assert Placement.from_json(json.loads(json.dumps(placement.to_json()))) == placement


def example() -> dict:
    door = Endpoint("127.0.0.1", 4000)
    member = Member(0, "a1", door, door, "here")
    place = BucketPlace(0, 3, (1,), (Joining(2, 7),), "held")
    return json.loads(json.dumps(Placement(9, {0: member}, {17: place}).to_json()))


def with_bucket(**changes: object) -> dict:
    wrong = example()
    wrong["buckets"]["17"] |= changes
    return wrong


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {},
        example() | {"more": 1},
        example() | {"version": True},
        example() | {"version": "9"},
        example() | {"members": [{}]},
        example() | {"members": [example()["members"][0] | {"endpoint": {"host": "h"}}]},
        example() | {"buckets": {"x": example()["buckets"]["17"]}},
        example() | {"buckets": {"-1": example()["buckets"]["17"]}},
        with_bucket(mirrors=[0]),
        with_bucket(mirrors=["1"]),
        with_bucket(mirrors=[1, 1]),
        with_bucket(joining=[[2]]),
        with_bucket(joining=[[1, 7]]),
        with_bucket(joining=[2]),
        with_bucket(lease=0),
        with_bucket(primary="0"),
        with_bucket(origin="elsewhere"),
    ],
)
def test_what_is_no_placement_is_refused(wrong: object) -> None:
    Placement.from_json(example())
    with pytest.raises(ProtocolError):
        Placement.from_json(wrong)


def test_only_the_incarnation_that_is_named_is_meant() -> None:
    placement = Placement.from_json(example())
    assert placement.names(0, "a1")
    assert not placement.names(0, "a2")
    assert not placement.names(1, "a1")
