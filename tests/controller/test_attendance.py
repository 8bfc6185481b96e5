"""Who counts as heard, by an invented clock."""

from __future__ import annotations

import pytest

from manyhands.controller.attendance import Attendance
from manyhands.controller.copies import InStep, Suspicion
from manyhands.controller.heartbeat import Heartbeat
from manyhands.controller.quarrels import Quarrels
from manyhands.errors import StaleRoute
from tests.controller.placements import first, member


def beat(server: int, *, incarnation: str = "a", known: int = 1, **words) -> Heartbeat:
    settings = {"in_step": (), "suspects": frozenset(), "progress": {}} | words
    return Heartbeat(member(server, incarnation=incarnation), known, **settings)


@pytest.fixture
def attendance() -> Attendance:
    return Attendance(lease_s=1.0, closed_s=0.2)


def test_a_server_is_heard_for_as_long_as_its_lease(attendance: Attendance) -> None:
    assert attendance.alive(0.0) == frozenset()
    assert attendance.hear(beat(3), "wire", 5.0)
    assert not attendance.hear(beat(3), "wire", 5.5)
    assert attendance.alive(6.4) == {3}
    assert attendance.alive(6.6) == frozenset()
    attendance.hear(beat(3), "wire", 9.0)
    assert attendance.alive(9.1) == {3}


def test_a_closed_connection_is_missed_sooner_unless_another_is_there(
    attendance: Attendance,
) -> None:
    attendance.hear(beat(0), "old", 0.0)
    attendance.hear(beat(1), "other", 0.0)
    attendance.hang_up("old", 0.1)
    assert attendance.alive(0.25) == {0, 1}
    assert attendance.alive(0.35) == {1}
    assert attendance.hear(beat(0), "new", 0.4), "its return is news"
    attendance.hang_up("old", 0.5)
    assert attendance.alive(0.9) == {0, 1}


def test_a_new_process_replaces_the_old_one_for_good(attendance: Attendance) -> None:
    attendance.hear(beat(0, incarnation="a"), "old", 0.0)
    assert attendance.hear(beat(0, incarnation="b"), "new", 0.1)
    with pytest.raises(StaleRoute, match="must end"):
        attendance.hear(beat(0, incarnation="a"), "old", 0.2)
    attendance.hang_up("old", 0.2)
    assert attendance.members()[0].incarnation == "b"
    assert attendance.alive(0.9) == {0}
    attendance.bury(0, "a")
    assert attendance.alive(0.9) == {0}, "the burial of the old one is none of the new one's affair"
    attendance.bury(0, "b")
    assert attendance.alive(0.9) == frozenset()
    with pytest.raises(StaleRoute):
        attendance.hear(beat(0, incarnation="b"), "new", 1.0)


def test_time_in_which_nobody_listened_does_not_count(attendance: Attendance) -> None:
    attendance.hear(beat(0), "wire", 0.0)
    attendance.hear(beat(1), "closed", 0.0)
    attendance.hang_up("closed", 0.0)
    attendance.forgive(60.0, 60.0)
    assert attendance.alive(60.1) == {0, 1}
    assert attendance.alive(60.3) == {0}


def test_a_successor_gives_every_member_its_time(attendance: Attendance) -> None:
    attendance.expect(first(3, 3), 10.0)
    assert attendance.alive(10.9) == {0, 1, 2}
    attendance.hear(beat(1), "wire", 10.9)
    assert attendance.alive(11.5) == {1}
    assert attendance.members().keys() == {0, 1, 2}
    attendance.expect(None, 12.0)
    assert attendance.alive(12.5) == {0, 1, 2}


def test_fresh_is_who_was_heard_this_very_moment(attendance: Attendance) -> None:
    attendance.expect(first(3, 3), 0.0)
    assert attendance.fresh(0.0) == frozenset(), "to be expected is not to be heard"
    for server in range(3):
        attendance.hear(beat(server), f"wire {server}", 1.0)
    attendance.hang_up("wire 1", 1.1)
    assert attendance.fresh(1.2) == {0, 2}
    attendance.hear(beat(2), "wire 2", 1.2)
    assert attendance.fresh(1.4) == {2}
    attendance.forgive(60.0, 61.4)
    assert attendance.fresh(61.4) == frozenset()
    assert attendance.alive(61.4) == {0, 2}


def test_who_is_only_expected_has_not_come(attendance: Attendance) -> None:
    """A process that died under another controller must not be taken in again."""
    placement = first(3, 3)
    attendance.bury(2, "a")
    attendance.expect(placement, 0.0)
    assert attendance.alive(0.5) == {0, 1}
    attendance.hear(beat(0), "wire", 0.5)
    assert [member.server for member in attendance.present(0.6)] == [0]
    attendance.expect(placement, 60.0)
    assert attendance.alive(60.1) == {0, 1}
    assert attendance.present(60.1) == ()


def test_a_suspicion_must_be_said_twice_in_a_row(attendance: Attendance) -> None:
    attendance.hear(beat(0, suspects=frozenset({2}), known=4), "wire", 0.0)
    assert attendance.suspicions(0.0) == ()
    attendance.hear(beat(0), "wire", 0.1)
    attendance.hear(beat(0, suspects=frozenset({2}), known=4), "wire", 0.2)
    assert attendance.suspicions(0.2) == ()
    attendance.hear(beat(0, suspects=frozenset({2}), known=5), "wire", 0.3)
    assert attendance.suspicions(0.3) == (Suspicion(0, 2, 5),)
    assert attendance.suspicions(2.0) == (), "a silent server suspects nobody"


def test_the_last_words_are_what_counts(attendance: Attendance) -> None:
    claim = InStep(0, 7, 2, 3, 1)
    attendance.hear(beat(0, in_step=(claim,), progress={7: 9}, known=6), "wire", 0.0)
    assert attendance.claims() == (claim,)
    assert attendance.progress() == {0: {7: 9}}
    assert attendance.newest_known() == 6
    attendance.hear(beat(0), "wire", 0.1)
    assert attendance.claims() == ()
    assert attendance.progress() == {0: {7: 9}}, "not every heartbeat brings it"


def test_a_pair_that_quarrels_is_kept_apart_longer_each_time() -> None:
    quarrels = Quarrels()
    now, waits = 0.0, []
    for _ in range(8):
        quarrels.note(2, 1, now)
        quarrels.note(1, 2, now + 0.1)  # of a pair that is apart: no news
        began = now
        assert quarrels.avoided(now) == {(1, 2), (2, 1)}
        while (1, 2) in quarrels.avoided(now):
            now += 0.25
        waits.append(now - began)
    assert waits == sorted(waits)
    assert waits[0] == 1.0
    assert waits[-1] == 30.0
    quarrels.note(1, 2, now + 100.0)
    assert quarrels.avoided(now + 101.5) == frozenset(), "long ago is forgotten"
    quarrels.note(1, 2, now + 200.0)
    quarrels.forget(2)
    assert quarrels.avoided(now + 200.0) == frozenset()
