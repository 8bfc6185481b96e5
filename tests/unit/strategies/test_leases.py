"""Who gets which piece, what becomes of a lost replica's, and when an epoch is over."""

from __future__ import annotations

import pytest

from manyhands.strategies.leases import Lease, LeaseDesk


def desk_with(replicas: int, pieces: int, **settings: object) -> LeaseDesk:
    desk = LeaseDesk(pieces, **{"share": 0.75, **settings})  # type: ignore[arg-type]
    for replica in range(replicas):
        desk.join(replica)
    desk.open(0)
    return desk


def asked(desk: LeaseDesk, *replicas: int) -> dict[int, list[int]]:
    for replica in replicas:
        desk.ask(replica)
    given: dict[int, list[int]] = {}
    for replica, lease in desk.grants():
        given.setdefault(replica, []).append(lease.piece)
    return given


def test_every_replica_gets_its_piece_in_turn() -> None:
    assert asked(desk_with(2, 4), 0, 0, 1) == {0: [0, 2], 1: [1]}


def test_a_fast_replica_takes_more() -> None:
    desk = desk_with(2, 10)
    asked(desk, 0, 1)
    for piece in (0, 2, 3, 4):
        assert desk.finish(0, Lease(0, piece))
        asked(desk, 0)
    assert desk.finished(0) == 4


def test_pieces_of_a_lost_replica_return_before_the_others() -> None:
    desk = desk_with(2, 4)
    asked(desk, 0, 1, 1)
    assert desk.leave(1) == 2
    assert asked(desk, 0, 0, 0) == {0: [1, 2, 3]}


def test_what_a_lost_replica_reports_late_is_not_counted_twice() -> None:
    desk = desk_with(2, 2)
    asked(desk, 0, 1)
    desk.leave(1)
    assert not desk.finish(1, Lease(0, 1))
    assert asked(desk, 0) == {0: [1]}
    assert desk.finish(0, Lease(0, 1))
    assert not desk.finish(0, Lease(0, 1))


@pytest.mark.parametrize(
    ("replicas", "busy", "over"), [(4, 1, True), (4, 2, False), (2, 1, False), (1, 1, False)]
)
def test_an_epoch_is_over_when_three_quarters_are_done(
    replicas: int, busy: int, over: bool
) -> None:
    desk = desk_with(replicas, replicas)
    asked(desk, *range(replicas))
    for replica in range(busy, replicas):
        desk.finish(replica, Lease(0, replica))
    assert desk.is_over(0) is over


def test_late_pieces_of_an_epoch_that_is_over_still_count_but_do_not_return() -> None:
    desk = desk_with(4, 4)
    asked(desk, 0, 1, 2, 3)
    for replica in range(3):
        desk.finish(replica, Lease(0, replica))
    assert desk.is_over(0)
    assert desk.finish(3, Lease(0, 3))
    desk.open(1)
    asked(desk, 3)
    assert desk.finished(0) == 4
    other = desk_with(4, 4)
    asked(other, 0, 1, 2, 3)
    for replica in range(3):
        other.finish(replica, Lease(0, replica))
    assert other.leave(3) == 0


def test_an_epoch_with_no_replica_left_is_not_over() -> None:
    desk = desk_with(1, 2)
    asked(desk, 0)
    desk.leave(0)
    assert not desk.is_over(0)


def test_the_next_epoch_follows_without_a_gap() -> None:
    desk = desk_with(1, 1)
    desk.open(1)
    desk.open(1)
    desk.ask(0)
    desk.ask(0)
    desk.ask(0)
    assert [lease for _, lease in desk.grants()] == [Lease(0, 0), Lease(1, 0)]


def test_an_epoch_is_over_when_its_last_piece_is_done_though_others_are_in_the_next() -> None:
    desk = desk_with(2, 2)
    desk.open(1)
    asked(desk, 0, 1)
    desk.finish(0, Lease(0, 0))
    assert asked(desk, 0) == {0: [0]}  # of the next
    assert not desk.is_over(0)
    desk.finish(1, Lease(0, 1))
    assert desk.is_over(0)
    assert not desk.is_over(1)


def test_an_epoch_is_not_over_while_a_piece_that_returned_waits() -> None:
    desk = desk_with(2, 2, share=0.5)
    desk.open(1)
    asked(desk, 0, 1)
    desk.give_back(1, Lease(0, 1))
    desk.finish(0, Lease(0, 0))
    assert not desk.is_over(0)


def test_a_warm_start_is_for_one_replica_alone() -> None:
    desk = desk_with(2, 4, warm_pieces=2)
    assert asked(desk, 0, 1) == {0: [0]}
    desk.finish(0, Lease(0, 0))
    assert asked(desk, 0) == {0: [1]}
    desk.finish(0, Lease(0, 1))
    assert asked(desk) == {1: [2]}


def test_a_warm_start_goes_on_with_another_when_its_replica_is_lost() -> None:
    desk = desk_with(2, 4, warm_pieces=2)
    asked(desk, 0, 1)
    desk.leave(0)
    assert asked(desk) == {1: [0]}


def test_a_replica_too_far_ahead_waits_for_the_slow_one() -> None:
    desk = desk_with(2, 9, bound=2)
    asked(desk, 0, 1)  # replica 1 trains on piece 1 all the while
    for piece in (0, 2, 3):
        desk.finish(0, Lease(0, piece))
        asked(desk, 0)
    assert desk.held_by(0) == 0
    desk.finish(1, Lease(0, 1))
    assert asked(desk) == {0: [4]}


def test_a_bound_does_not_wait_for_the_dead() -> None:
    desk = desk_with(2, 9, bound=0)
    asked(desk, 0, 1)
    desk.finish(0, Lease(0, 0))
    assert asked(desk, 0) == {}
    desk.leave(1)
    assert asked(desk) == {0: [1]}


def test_a_piece_given_back_is_given_again() -> None:
    desk = desk_with(2, 2)
    asked(desk, 0, 0)
    desk.give_back(0, Lease(0, 0))
    desk.give_back(0, Lease(0, 0))
    assert asked(desk, 1, 1) == {1: [0]}


def test_the_last_pieces_of_a_lost_replica_return_too() -> None:
    desk = desk_with(2, 2)
    asked(desk, 0, 1)
    desk.finish(0, Lease(0, 0))
    assert desk.leave(1) == 1
    assert not desk.is_over(0)
    assert asked(desk, 0) == {0: [1]}


def test_a_replica_that_retires_gets_nothing_and_holds_nobody_up() -> None:
    desk = desk_with(2, 4)
    asked(desk, 0, 1, 1)
    desk.retire(1)
    assert asked(desk, 0, 1) == {0: [3]}
    desk.give_back(1, Lease(0, 2))
    assert asked(desk, 0) == {0: [2]}
    for piece in (0, 2, 3):
        desk.finish(0, Lease(0, piece))
    assert desk.is_over(0)
    assert desk.finish(1, Lease(0, 1))


def test_a_resumed_run_has_its_warm_start_behind_it() -> None:
    desk = desk_with(2, 4, warm_pieces=2)
    desk.skip_warm_start()
    assert asked(desk, 0, 1) == {0: [0], 1: [1]}
