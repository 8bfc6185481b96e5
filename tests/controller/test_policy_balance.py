"""Decisions that spread: copies on several hosts, even loads, and no more moves than it takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.controller import balance, draining
from manyhands.controller.failover import admit
from manyhands.controller.policies import Reports, decide
from manyhands.controller.view import View, held_bytes, in_step, primary_bytes
from manyhands.parameter_server.placement import Placement
from tests.controller.placements import (
    MB,
    PATIENT,
    at_rest,
    claims,
    first,
    member,
    members,
    view_of,
)

COPIES = st.integers(1, 3)


def uneven(loads: dict[int, int]) -> float:
    """How far the loads are from their mean at most, as a share of it."""
    mean = sum(loads.values()) / len(loads)
    return max(abs(load - mean) for load in loads.values()) / mean


def copies_that_differ(before: Placement, after: Placement) -> int:
    """How many copies are on servers that did not have them."""
    return sum(
        len(set(in_step(after.buckets[bucket])) - set(in_step(place)))
        for bucket, place in before.buckets.items()
    )


def spread_over_hosts(placement: Placement, view: View) -> bool:
    """Whether no host has two copies of a bucket while another that could has none."""
    hosts = {placement.members[server].host for server in view.lasting(placement)}
    for place in placement.buckets.values():
        crowd = Counter(placement.members[server].host for server in in_step(place))
        if max(crowd.values()) > 1 and set(crowd) != hosts:
            return False
    return True


@settings(**PATIENT)
@given(st.integers(1, 6), COPIES, st.integers(1, 3), st.lists(st.integers(1, 9), min_size=1))
def test_the_first_placement_has_all_copies_spread(
    servers: int, copies: int, hosts: int, sizes: list[int]
) -> None:
    there = members(servers, hosts="xyz"[:hosts])
    loads = {bucket: size * MB for bucket, size in enumerate(sizes)}
    view = View(alive=frozenset(there), loads=loads, copies=copies)
    placement = balance.initial(there, {b: b % servers for b in loads}, view)
    for bucket, place in placement.buckets.items():
        assert place.primary == bucket % servers
        assert (place.lease, place.origin, place.joining) == (1, "new", ())
        assert len(in_step(place)) == min(copies, servers)
    assert spread_over_hosts(placement, view)


@pytest.mark.parametrize("servers", [3, 4, 5, 8])
@pytest.mark.parametrize("copies", [1, 2, 3])
def test_the_first_placement_is_even_and_stays(servers: int, copies: int) -> None:
    placement = first(servers, 40 * servers, copies=copies)
    view = view_of(placement, copies=copies)
    assert uneven(held_bytes(placement, view, placement.members)) <= 0.1
    assert uneven(primary_bytes(placement, view, placement.members)) <= 0.1
    assert decide(placement, view, Reports(), calm=True) is None


@settings(max_examples=40, **PATIENT)
@given(
    st.integers(2, 6),
    COPIES,
    st.integers(1, 3),
    st.lists(st.integers(1, 9), min_size=1, max_size=60),
    st.integers(4, 200),
)
def test_a_lost_servers_copies_are_recreated_and_nothing_else_moves(
    servers: int, copies: int, hosts: int, sizes: list[int], join_mb: int
) -> None:
    there = members(servers, hosts="xyz"[:hosts])
    loads = {bucket: size * MB for bucket, size in enumerate(sizes)}
    full = View(alive=frozenset(there), loads=loads, copies=copies, join_bytes=join_mb * MB)
    before = balance.initial(there, {b: b % servers for b in loads}, full)
    view = replace(full, alive=full.alive - {1})
    after = decide(before, view, Reports(dead=((1, "a"),))) or before
    for _ in range(200):
        after = decide(after, view, Reports(in_step=claims(after))) or after
    wanted = min(copies, servers - 1)
    for bucket, place in after.buckets.items():
        kept = set(in_step(before.buckets[bucket])) - {1}
        assert len(in_step(place)) == wanted
        assert kept <= set(in_step(place)), "a copy that was well where it was has moved"
        assert not place.joining
    assert spread_over_hosts(after, view)


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("servers", [2, 3, 6])
def test_a_new_server_gets_its_share_by_moves_to_it_alone(servers: int, copies: int) -> None:
    before = first(servers, 60 * servers, copies=copies)
    newcomer = admit(before, member(servers))
    view = view_of(newcomer, copies=min(copies, servers))
    after = at_rest(newcomer, view)
    assert uneven(held_bytes(after, view, after.members)) <= 0.1
    assert uneven(primary_bytes(after, view, after.members)) <= 0.1
    arrived = held_bytes(after, view, after.members)[servers] // MB
    assert copies_that_differ(before, after) == arrived
    assert arrived <= 60 * servers * min(copies, servers) / (servers + 1) + 1


@settings(max_examples=60, **PATIENT)
@given(
    st.integers(1, 5),
    st.integers(1, 3),
    COPIES,
    st.integers(1, 3),
    st.lists(st.integers(0, 30), min_size=1, max_size=40),
    st.integers(1, 60),
)
def test_evening_out_comes_to_rest(
    servers: int, more: int, copies: int, hosts: int, sizes: list[int], join_mb: int
) -> None:
    there = members(servers, hosts="xyz"[:hosts])
    loads = {bucket: size * MB for bucket, size in enumerate(sizes)}
    view = View(alive=frozenset(there), loads=loads, copies=copies, join_bytes=join_mb * MB)
    placement = balance.initial(there, {b: b % servers for b in loads}, view)
    for number in range(servers, servers + more):
        placement = admit(placement, member(number, host="xyz"[number % 3]))
    view = replace(view, alive=frozenset(placement.members))
    after = at_rest(placement, view)
    assert balance.is_settled(after, view)
    assert spread_over_hosts(after, view)


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_what_is_copied_at_a_time_is_limited(copies: int) -> None:
    before = admit(first(3, 90, copies=copies), member(3))
    view = view_of(before, copies=copies, join_bytes=5 * MB)
    after = decide(before, view, Reports(), calm=True)
    assert after is not None
    for side in ("to", "from"):
        flow: Counter[int | None] = Counter()
        for place in after.buckets.values():
            for joining in place.joining:
                flow[joining.server if side == "to" else place.primary] += 1
        assert 0 < max(flow.values()) <= 5


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_a_server_is_emptied_with_no_bucket_below_its_copies(copies: int) -> None:
    placement = first(4, 20, copies=copies)
    view = view_of(placement, copies=copies, join_bytes=3 * MB)
    heard = Reports(drains={1: True})
    for _ in range(100):
        after = decide(placement, view, heard, calm=True)
        if after is None:
            break
        for bucket, place in after.buckets.items():
            assert len(in_step(place)) >= copies
            assert place.primary != 1 or not set(placement.buckets[bucket].mirrors) - {1}
        placement = after
        heard = Reports(in_step=claims(placement))
    assert draining.is_empty(placement, 1)
    assert 1 in placement.members


def test_draining_ends_where_too_few_servers_stay_and_never_takes_the_last_copy() -> None:
    placement = first(2, 6, copies=2)
    view = view_of(placement, copies=2)
    placement = at_rest(draining.mark(placement, {0: True}), view)
    assert draining.is_empty(placement, 0)
    placement = at_rest(draining.mark(placement, {1: True}), view)
    assert all(place.primary == 1 for place in placement.buckets.values())


def test_a_server_that_stays_after_all_gets_its_share_again() -> None:
    placement = first(3, 60, copies=2)
    view = view_of(placement, copies=2)
    placement = at_rest(draining.mark(placement, {1: True}), view)
    placement = at_rest(draining.mark(placement, {1: False}), view)
    assert uneven(held_bytes(placement, view, placement.members)) <= 0.1
    assert uneven(primary_bytes(placement, view, placement.members)) <= 0.1


@settings(**PATIENT)
@given(st.lists(st.integers(1, 9), min_size=6, max_size=12), st.integers(0, 2))
def test_a_loss_after_a_quiet_time_moves_only_what_was_lost(sizes: list[int], lost: int) -> None:
    """Evening out comes later: every bucket that moves has a new lease and is aligned anew."""
    there = members(3)
    loads = {bucket: size * MB for bucket, size in enumerate(sizes)}
    view = View(alive=frozenset(there), loads=loads, copies=3)
    before = balance.initial(there, {bucket: bucket % 3 for bucket in loads}, view)
    after = decide(before, replace(view, alive=view.alive - {lost}), Reports(), calm=True)
    assert after is not None
    for bucket, place in before.buckets.items():
        if place.primary != lost:
            assert after.buckets[bucket].primary == place.primary
            assert after.buckets[bucket].lease == place.lease
