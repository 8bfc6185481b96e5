"""What placements tell, one after another."""

from __future__ import annotations

from dataclasses import replace

from manyhands.parameter_server.placement import BucketPlace, Joining, Member, Placement
from manyhands.strategies.downpour_driver.placement_story import (
    PlacementStory,
    is_empty,
    sole_holders,
)
from manyhands.telemetry.events import CopiesRestored, PrimaryMoved, StoreRestored
from manyhands.transport.endpoint import Endpoint

WHOLE = Placement(
    1,
    {},
    {
        10: BucketPlace(0, lease=1, mirrors=(1, 2)),
        11: BucketPlace(1, lease=1, mirrors=(0, 2)),
        12: BucketPlace(1, lease=1, mirrors=(2, 0)),
    },
)


def with_buckets(placement: Placement, **places: BucketPlace) -> Placement:
    changed = {int(name[1:]): place for name, place in places.items()}
    return Placement(placement.version + 1, {}, {**placement.buckets, **changed})


def test_a_lost_server_is_told_by_who_takes_over_and_by_when_its_copies_are_back():
    story = PlacementStory(copies=3, write_back_s=5.0)
    assert story.go_on(WHOLE, 100.0) == []
    lost = with_buckets(
        WHOLE,
        b10=BucketPlace(0, lease=1, mirrors=(2,)),
        b11=BucketPlace(0, lease=2, mirrors=(2,), origin="held"),
        b12=BucketPlace(2, lease=2, mirrors=(0,), origin="held"),
    )
    assert story.go_on(lost, 101.0) == [PrimaryMoved(server=1, buckets=2, by=(0, 2))]
    joining = {
        f"b{n}": replace(place, joining=(Joining(1, 3),)) for n, place in lost.buckets.items()
    }
    assert story.go_on(with_buckets(lost, **joining), 102.0) == []
    back = {
        f"b{n}": replace(place, mirrors=(*place.mirrors, 1)) for n, place in lost.buckets.items()
    }
    whole = with_buckets(lost, **back)
    assert story.go_on(whole, 103.5) == [CopiesRestored(copies=3, seconds=2.5)]
    assert story.go_on(whole, 104.0) == []


def test_buckets_without_any_copy_are_told_once_they_are_read_back():
    story = PlacementStory(copies=1, write_back_s=5.0)
    alone = Placement(1, {}, {3: BucketPlace(0, lease=1)})
    story.go_on(alone, 0.0)
    assert story.go_on(with_buckets(alone, b3=BucketPlace(None, lease=1)), 1.0) == []
    read_back = with_buckets(alone, b3=BucketPlace(0, lease=2, origin="store"))
    assert story.go_on(read_back, 2.0) == [
        StoreRestored(buckets=1, servers=(0,), write_back_s=5.0),
        CopiesRestored(copies=1, seconds=1.0),
    ]


def test_who_holds_the_last_copy_and_who_holds_none():
    door = Endpoint("127.0.0.1", 1)
    members = {n: Member(n, f"first {n}", door, door, "here") for n in range(3)}
    placement = replace(WHOLE, members=members)
    living = {n: f"first {n}" for n in range(3)}
    assert sole_holders(placement, living) == frozenset()
    # Deaths that the placement does not know of yet: 1 is gone, 2 was started again.
    assert sole_holders(placement, {0: "first 0", 2: "second 2"}) == {0}
    poor = with_buckets(placement, b10=BucketPlace(2, lease=2, joining=(Joining(0, 5),)))
    assert sole_holders(replace(poor, members=members), living) == {2}
    assert not is_empty(poor, 0)
    assert is_empty(poor, 7)
