"""Decisions under hypothesis: whatever was placed, seen and heard, nothing acknowledged is lost.

The oracle is written apart from the policies: it knows which processes are gone and which words of
primaries hold, and from that which servers may hold every acknowledged update.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.controller import failover
from manyhands.controller.policies import Reports, decide
from manyhands.controller.view import View
from manyhands.parameter_server.placement import BucketPlace, Placement
from tests.controller.placements import PATIENT, first, placements, reports, views

CASES = st.data()


def gone(placement: Placement, heard: Reports) -> set[int]:
    """Members whose process, as the placement knows it, is dead."""
    dead = {n for n, incarnation in heard.dead if placement.names(n, incarnation)}
    anew = {
        member.server
        for member in heard.arrived
        if member.server in placement.members
        and not placement.names(member.server, member.incarnation)
    }
    return dead | anew


def complete(bucket: int, place: BucketPlace, heard: Reports, lost: set[int]) -> set[int]:
    """Servers that hold every acknowledged update of the bucket."""
    found = {place.primary, *place.mirrors} - {None}
    for word in heard.in_step:
        said_by_leader = (word.primary, word.lease) == (place.primary, place.lease)
        if word.bucket == bucket and said_by_leader and word.primary not in lost:
            found |= {
                j.server for j in place.joining if (j.server, j.since) == (word.server, word.since)
            }
    return found - lost


@settings(max_examples=300, **PATIENT)
@given(CASES)
def test_only_complete_copies_lead_or_count(data: st.DataObject) -> None:
    before = data.draw(placements())
    view = data.draw(views(before))
    heard = data.draw(reports(before))
    after = decide(before, view, heard, calm=data.draw(st.booleans()))
    if after is None:
        return
    assert after.version == before.version + 1
    assert after.buckets.keys() == before.buckets.keys()
    lost = gone(before, heard)
    for bucket, place in before.buckets.items():
        check_given_up(view, after.buckets[bucket], complete(bucket, place, heard, lost))
        check_bucket(
            before, after, place, after.buckets[bucket], complete(bucket, place, heard, lost)
        )


def check_bucket(
    before: Placement, after: Placement, old: BucketPlace, new: BucketPlace, fit: set[int]
) -> None:
    in_step = {new.primary, *new.mirrors} - {None}
    if new.origin == "store" and (new.lease, new.origin) != (old.lease, old.origin):
        assert not fit, "a store is read back while a server holds everything"
        assert in_step == {new.primary}
    else:
        assert in_step <= fit, "a copy counts that may lack an acknowledged update"
        assert bool(in_step) == bool(fit), "the last complete copies were given up"
    if new.primary != old.primary and new.primary is not None:
        assert new.lease > old.lease
        assert new.origin != "new"
    assert new.lease >= old.lease
    for joining in new.joining:
        assert joining.since == after.version or (joining in old.joining and new.lease == old.lease)
        assert joining.server in after.members
    assert in_step <= after.members.keys()


def check_given_up(view: View, new: BucketPlace, fit: set[int]) -> None:
    """A complete copy is given up only for a primary that is heard this very moment."""
    if fit - {new.primary, *new.mirrors}:
        assert view.is_fresh(new.primary)


@settings(**PATIENT)
@given(CASES)
def test_no_decision_follows_from_the_same_words_twice(data: st.DataObject) -> None:
    """A word is worth something once: said again, it must not undo what came of it."""
    before = data.draw(placements())
    heard = data.draw(reports(before))
    view = data.draw(views(before))
    after = decide(before, view, heard) or before
    again = decide(after, view, heard) or after
    for bucket, place in after.buckets.items():
        if place.primary in view.alive:
            fit = {place.primary, *place.mirrors}
            fit |= complete(bucket, place, heard, gone(after, heard))
            assert {again.buckets[bucket].primary, *again.buckets[bucket].mirrors} <= fit | {None}


@settings(**PATIENT)
@given(CASES)
def test_a_silent_server_is_waited_for_when_it_holds_the_only_copy(data: st.DataObject) -> None:
    before = data.draw(placements())
    view = data.draw(views(before))
    after = decide(before, view, Reports()) or before
    for bucket, place in before.buckets.items():
        copies = {place.primary, *place.mirrors} - {None}
        if copies and not copies & view.alive:
            kept = after.buckets[bucket]
            assert (kept.primary, kept.lease, kept.mirrors) == (
                place.primary,
                place.lease,
                place.mirrors,
            )


@settings(**PATIENT)
@given(CASES)
def test_a_bucket_with_a_complete_copy_that_is_heard_has_a_primary(data: st.DataObject) -> None:
    before = data.draw(placements())
    view = data.draw(views(before))
    after = decide(before, view, Reports()) or before
    for bucket, place in before.buckets.items():
        if {place.primary, *place.mirrors} & view.alive:
            assert after.buckets[bucket].primary in view.alive


def test_a_copy_that_only_joins_can_not_be_promoted() -> None:
    place = first(3, 1, copies=2).buckets[0]
    with pytest.raises(ValueError, match="no mirror"):
        failover.promote(place, 2, keep=False)
