"""What placements ask of a server, under hypothesis: in the end it stands as the last one says."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from manyhands.parameter_server.mirror_plan import (
    NOTHING,
    Stand,
    View,
    change,
    kept_joining,
    view_of,
)
from manyhands.parameter_server.placement import BucketPlace, Joining, Member, Placement
from manyhands.transport.endpoint import Endpoint

DOOR = Endpoint("127.0.0.1", 4000)
SERVERS = range(4)
US, OUR_INCARNATION = 0, "a"


def member(server: int, incarnation: str) -> Member:
    return Member(server, incarnation, DOOR, DOOR, "here")


@st.composite
def places(draw: st.DrawFn) -> BucketPlace:
    servers = draw(st.permutations(SERVERS))
    mirrors = draw(st.integers(0, 2))
    joining = draw(st.integers(0, 1))
    return BucketPlace(
        draw(st.sampled_from([servers[0], None])),
        draw(st.integers(1, 4)),
        tuple(servers[1 : 1 + mirrors]),
        tuple(Joining(s, draw(st.integers(1, 3))) for s in servers[3 : 3 + joining]),
        draw(st.sampled_from(["new", "held", "store"])),
    )


@st.composite
def histories(draw: st.DrawFn) -> list[Placement]:
    return [
        Placement(
            version,
            {
                s: member(s, draw(st.sampled_from("ab")))
                for s in draw(st.sets(st.sampled_from(SERVERS)))
            },
            {bucket: draw(places()) for bucket in range(3)},
        )
        for version in range(1, draw(st.integers(2, 6)))
    ]


@given(histories())
def test_changes_one_after_another_lead_to_what_the_last_placement_says(
    history: list[Placement],
) -> None:
    held: dict[int, Stand] = {}
    view = NOTHING
    for placement in history:
        new = view_of(placement, US, OUR_INCARNATION)
        held |= change(view, new).stands
        view = new
    for bucket, place in history[-1].buckets.items():
        stand = held[bucket]
        if not history[-1].names(US, OUR_INCARNATION):
            assert stand.role == "none"
        elif place.primary == US:
            assert stand == Stand("primary", place.lease, place.mirrors, place.joining)
        else:
            assert stand == Stand("mirror" if US in place.copies else "none", place.lease)


@given(histories())
def test_nothing_changes_with_what_is_the_same(history: list[Placement]) -> None:
    view = view_of(history[0], US, OUR_INCARNATION)
    assert change(view, view) == type(change(view, view))(frozenset(), (), {})


@given(histories())
def test_a_peer_is_dropped_exactly_when_its_process_is_another(history: list[Placement]) -> None:
    for old, new in pairwise(history):
        dropped = change(
            view_of(old, US, OUR_INCARNATION), view_of(new, US, OUR_INCARNATION)
        ).dropped
        for server in SERVERS:
            was, is_now = old.members.get(server), new.members.get(server)
            assert (server in dropped) == (was is not None and was != is_now)


@given(histories())
def test_a_bucket_is_read_back_once_under_a_lease(history: list[Placement]) -> None:
    view = NOTHING
    last: dict[int, tuple[int, bool]] = {}  # lease, whether we were primary
    for placement in history:
        new = view_of(placement, US, OUR_INCARNATION)
        restored = change(view, new).restored
        named = placement.names(US, OUR_INCARNATION)
        for bucket, place in placement.buckets.items():
            ours = named and place.primary == US
            fresh = last.get(bucket) != (place.lease, True)
            assert (bucket in restored) == (ours and place.origin == "store" and fresh)
            last[bucket] = (place.lease, ours)
        view = new


@given(histories())
def test_filling_goes_on_only_where_nothing_about_it_changed(history: list[Placement]) -> None:
    for old, new in pairwise(history):
        old_view, new_view = (view_of(p, US, OUR_INCARNATION) for p in (old, new))
        dropped = change(old_view, new_view).dropped
        for bucket in new.buckets:
            kept = kept_joining(old_view.stands[bucket], new_view.stands[bucket], dropped)
            for server in kept:
                before, after = old.buckets[bucket], new.buckets[bucket]
                assert before.primary == after.primary == US
                assert before.lease == after.lease
                assert {j for j in before.joining if j.server == server} == {
                    j for j in after.joining if j.server == server
                }
                assert old.members.get(server) == new.members.get(server)


@given(histories())
def test_a_primary_sends_to_every_copy_there_is(history: list[Placement]) -> None:
    placement = history[-1]
    view = view_of(placement, US, OUR_INCARNATION)
    wanted = {
        (bucket, server)
        for bucket, place in placement.buckets.items()
        if place.primary == US and placement.names(US, OUR_INCARNATION)
        for server in place.copies[1:]
    }
    assert {(b, s) for s in SERVERS for b in view.buckets_sent_to(s)} == wanted
    assert set(view.peers()) == {server for _, server in wanted} & set(placement.members)


HELD = Stand("primary", 2, (1,), (Joining(2, 5),))


def test_filling_begins_anew_under_another_lease_and_for_another_process() -> None:
    assert kept_joining(HELD, HELD, frozenset()) == {2}
    assert kept_joining(HELD, replace(HELD, lease=4), frozenset()) == frozenset()
    assert kept_joining(HELD, HELD, frozenset({2})) == frozenset()
    assert kept_joining(HELD, replace(HELD, joining=(Joining(2, 6),)), frozenset()) == frozenset()
    assert kept_joining(Stand("mirror", 2), HELD, frozenset()) == frozenset()
    assert kept_joining(None, HELD, frozenset()) == frozenset()


def seen(place: BucketPlace, **names: str) -> View:
    members = {s: member(s, names.get(f"s{s}", OUR_INCARNATION)) for s in SERVERS}
    return view_of(Placement(1, members, {7: place}), US, OUR_INCARNATION)


def test_a_bucket_is_held_anew_when_the_process_of_a_copy_is_another() -> None:
    place = BucketPlace(US, 2, (1,))
    todo = change(seen(place), seen(place, s1="b"))
    assert todo.dropped == {1}
    assert set(todo.stands) == {7}


def test_a_primary_that_was_not_named_for_a_while_reads_back_again() -> None:
    place = BucketPlace(US, 2, (), (), "store")
    assert change(NOTHING, seen(place)).restored == (7,)
    assert change(seen(place), seen(place)).restored == ()
    assert change(seen(place, s0="b"), seen(place)).restored == (7,)
