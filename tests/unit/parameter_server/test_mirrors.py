"""What a server tells its lanes and the controller, with lanes that only write down."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from manyhands.parameter_server import mirrors as mirrors_module
from manyhands.parameter_server.mirrors import InStep, Mirrors
from manyhands.parameter_server.peers import PeerDialling, Peers
from manyhands.parameter_server.placement import BucketPlace, Joining, Member, Placement
from manyhands.parameter_server.shard_map import ParameterSpec, make_shard_map
from manyhands.transport.endpoint import Endpoint
from tests.unit.transport.conftest import TOKEN, wait_until

NOBODY = Endpoint("127.0.0.1", 1)
SHARDS = make_shard_map([ParameterSpec("w", (4096, 64))], servers=3, lanes=2, chunk_bytes=1 << 16)
BUCKETS = sorted({chunk.bucket for chunk in SHARDS.chunks})
US = (0, "a")


class Lanes:
    """Writes down what it is told; a test says what it answers."""

    def __init__(self) -> None:
        self.held: dict[int, dict[str, Any]] = {}
        self.orders: list[str] = []
        self.late: dict[int, float] = {}
        self.restored: list[int] = []
        self._events: list[tuple[str, int, int, int]] = []
        self._waits = 0
        self._some = threading.Condition()

    def hold(self, chunks: list[int], **what: Any) -> None:
        self.orders.append(f"hold {what['role']}")
        self.held |= dict.fromkeys(chunks, what)

    def drop_peer(self, peer: int) -> None:
        self.orders.append(f"drop {peer}")

    def say(self, *event: Any) -> None:
        with self._some:
            self._events.append(event)
            self._some.notify()

    def settle(self) -> None:
        """Wait until everything that was said is taken in."""
        with self._some:
            before = self._waits
        wait_until(lambda: not self._events and self._waits > before + 1, what="events taken in")

    def wait_events(self, timeout_s: float) -> list[tuple[str, int, int, int]]:
        with self._some:
            self._waits += 1
            self._some.wait_for(lambda: self._events, timeout_s)
            events, self._events = self._events, []
            return events

    def lagging(self) -> dict[int, float]:
        return dict(self.late)

    def progress(self) -> np.ndarray:
        return np.array([[number, 1, number + 10] for number in sorted(self.held)], np.int64)

    def listed(self, peer: int) -> list[int]:
        return [n for n, what in self.held.items() if peer in dict(what["joining"])]


@contextmanager
def mirrors(**options: Any) -> Iterator[tuple[Mirrors, Lanes, threading.Event]]:
    lanes, told = Lanes(), threading.Event()
    dialling = PeerDialling(server=0, token=TOKEN, map_version=1)
    ours = Mirrors(
        lanes,
        SHARDS,
        US,
        Peers(lanes, dialling),
        states=[0],
        on_news=told.set,
        **{"fill_mb_s": 1000.0} | options,
    )
    ours.start()
    try:
        yield ours, lanes, told
    finally:
        ours.close()


def placement(version: int, place: BucketPlace, **incarnations: str) -> Placement:
    names = {0: "a", 1: "b", 2: "c"} | {int(s[1:]): name for s, name in incarnations.items()}
    members = {s: Member(s, name, NOBODY, NOBODY, "here") for s, name in names.items()}
    return Placement(version, members, dict.fromkeys(BUCKETS, place))


def test_a_placement_is_told_to_the_lanes_and_an_older_one_is_not():
    with mirrors() as (ours, lanes, _):
        ours.take(placement(5, BucketPlace(0, 2, (1, 2))))
        expected = {"role": "primary", "lease": 2, "mirrors": (1, 2), "joining": ()}
        assert lanes.held == dict.fromkeys(range(len(SHARDS.chunks)), expected)
        assert lanes.orders == ["hold primary"]  # one word for all of them
        ours.take(placement(4, BucketPlace(1, 1, (0,))))
        ours.take(placement(5, BucketPlace(1, 1, (0,))))
        assert lanes.orders == ["hold primary"]
        ours.take(placement(6, BucketPlace(1, 3, (0,))))
        assert {what["role"] for what in lanes.held.values()} == {"mirror"}
        assert ours.served() == []
        assert ours.news().known == 6


def test_nothing_is_held_when_another_incarnation_is_meant():
    with mirrors() as (ours, lanes, _):
        ours.take(placement(5, BucketPlace(0, 2, (1,))))
        ours.take(placement(6, BucketPlace(0, 3, (1,)), s0="z"))
        assert {(w["role"], w["lease"]) for w in lanes.held.values()} == {("none", 3)}
        assert {(w["mirrors"], w["joining"]) for w in lanes.held.values()} == {((), ())}


def all_in_step(lanes: Lanes, peer: int, since: int) -> None:
    for number in range(len(SHARDS.chunks)):
        lanes.say("in_step", peer, number, since)


def test_joining_copies_are_filled_and_told_when_a_whole_bucket_is_in_step():
    with mirrors() as (ours, lanes, told):
        ours.take(placement(5, BucketPlace(0, 2, (1,), (Joining(2, 5),))))
        wait_until(lambda: len(lanes.listed(2)) == len(SHARDS.chunks), what="all of it listed")
        assert all(what["joining"] == ((2, 5),) for what in lanes.held.values())
        assert ours.news().in_step == ()
        first = [chunk for chunk in SHARDS.chunks if chunk.bucket == BUCKETS[0]]
        for chunk in first[:-1]:
            lanes.say("in_step", 2, chunk.number, 5)
        lanes.say("in_step", 2, first[-1].number, 4)  # of an entry that is no more
        lanes.settle()
        assert ours.news().in_step == ()
        told.clear()
        lanes.say("in_step", 2, first[-1].number, 5)
        wait_until(lambda: ours.news().in_step, what="the bucket in step")
        assert ours.news().in_step == (InStep(BUCKETS[0], 2, 5, 2),)
        assert told.wait(20)


def test_what_a_copy_said_before_it_was_taken_out_counts_for_nothing():
    with mirrors() as (ours, lanes, _):
        ours.take(placement(5, BucketPlace(0, 2, (1,), (Joining(2, 5),))))
        wait_until(lambda: len(lanes.listed(2)) == len(SHARDS.chunks), what="all of it listed")
        all_in_step(lanes, 2, 5)
        wait_until(lambda: len(ours.news().in_step) == len(BUCKETS), what="in step")
        ours.take(placement(7, BucketPlace(0, 2, (1,), (Joining(2, 7),))))
        assert ours.news().in_step == ()
        wait_until(lambda: len(lanes.listed(2)) == len(SHARDS.chunks), what="listed again")
        all_in_step(lanes, 2, 5)  # these had waited in the queue
        lanes.settle()
        assert all(what["joining"] == ((2, 7),) for what in lanes.held.values())
        assert ours.news().in_step == ()


def test_a_copy_stays_listed_until_it_is_a_mirror():
    with mirrors() as (ours, lanes, _):
        ours.take(placement(5, BucketPlace(0, 2, (1,), (Joining(2, 5),))))
        wait_until(lambda: len(lanes.listed(2)) == len(SHARDS.chunks), what="all of it listed")
        all_in_step(lanes, 2, 5)
        wait_until(lambda: len(ours.news().in_step) == len(BUCKETS), what="in step")
        lanes.say("peer_lost", 2, 0, 0)
        ours.take(placement(6, BucketPlace(0, 2, (), (Joining(2, 5),))))  # a mirror was lost
        assert len(lanes.listed(2)) == len(SHARDS.chunks)
        assert len(ours.news().in_step) == len(BUCKETS)
        ours.take(placement(7, BucketPlace(0, 2, (2,))))
        assert {(w["mirrors"], w["joining"]) for w in lanes.held.values()} == {((2,), ())}
        assert ours.news().in_step == ()


def test_a_peer_started_again_is_dropped_before_it_is_listed():
    with mirrors() as (ours, lanes, _):
        ours.take(placement(5, BucketPlace(0, 2, (1, 2))))
        lanes.orders.clear()
        ours.take(placement(6, BucketPlace(0, 2, (1,), (Joining(2, 6),)), s2="d"))
        assert lanes.orders[:2] == ["drop 2", "hold primary"]


def test_a_connection_that_a_lane_lost_is_dialled_again(monkeypatch):
    lost: list[tuple[int, int]] = []
    monkeypatch.setattr(Peers, "lost", lambda self, peer, lane: lost.append((peer, lane)))
    with mirrors() as (_, lanes, _):
        lanes.say("peer_lost", 2, 1, 0)
        wait_until(lambda: lost == [(2, 1)], what="the loss told")


def test_a_server_that_is_fenced_asks_the_controller_at_once():
    with mirrors() as (_, lanes, told):
        lanes.say("fenced", 3, 9, 0)
        assert told.wait(20)


def test_lanes_that_can_not_be_listened_to_end_the_process(monkeypatch, caplog):
    with mirrors() as (ours, lanes, _):
        assert not ours.failed.is_set()
        monkeypatch.setattr(lanes, "lagging", lambda: 1 / 0)
        assert ours.failed.wait(20)
    assert "ZeroDivisionError" in caplog.text


def test_filling_keeps_to_its_budget():
    with mirrors(fill_mb_s=0.001) as (ours, lanes, _):
        ours.take(placement(5, BucketPlace(0, 2, (), (Joining(1, 5), Joining(2, 5)))))
        wait_until(lambda: lanes.listed(1) or lanes.listed(2), what="the first chunk's turn")
        assert len(lanes.listed(1)) + len(lanes.listed(2)) == 1


def test_suspects_are_told_at_once():
    with mirrors(suspect_s=0.1) as (ours, lanes, told):
        ours.take(placement(5, BucketPlace(0, 2, (1, 2))))
        lanes.late = {1: 0.0, 2: 9.0}
        wait_until(lambda: ours.news().suspects == (2,), what="the suspect")
        assert told.wait(20)
        lanes.late = {}
        wait_until(lambda: ours.news().suspects == (), what="cleared")


def test_a_copy_that_can_not_be_filled_is_suspected(monkeypatch):
    monkeypatch.setattr(mirrors_module, "_STALLED_S", 0.05)
    with mirrors() as (ours, lanes, told):
        ours.take(placement(5, BucketPlace(0, 2, (1,), (Joining(2, 5),))))
        wait_until(lambda: ours.news().suspects == (2,), what="the suspect")
        assert told.wait(20)
        all_in_step(lanes, 2, 5)
        wait_until(lambda: ours.news().suspects == (), what="cleared")


def test_progress_is_told_by_bucket_and_not_every_time():
    with mirrors() as (ours, _, _):
        ours.take(placement(5, BucketPlace(0, 2)))
        expected: dict[int, int] = {}
        for chunk in SHARDS.chunks:
            expected[chunk.bucket] = expected.get(chunk.bucket, 0) + chunk.number + 10
        assert ours.news().progress == expected
        assert ours.news().progress == {}


def test_buckets_are_read_back_before_they_are_held():
    begun, go_on = threading.Event(), threading.Event()

    def restore(chunks: Sequence[int], lease: int) -> None:
        assert lease == 4
        begun.set()
        assert go_on.wait(20)

    with mirrors(restore=restore) as (ours, lanes, _):
        ours.take(placement(5, BucketPlace(0, 4, (), (), "store")))
        assert begun.wait(20)
        assert lanes.held == {}
        assert ours.news().known == 5  # heartbeats go on meanwhile
        go_on.set()
        wait_until(lambda: len(lanes.held) == len(SHARDS.chunks), what="held in the end")
        assert sorted(ours.served()) == list(range(len(SHARDS.chunks)))
        assert ours.lost == 0
        begun.clear()
        ours.take(placement(6, BucketPlace(0, 4, (), (Joining(1, 6),), "store")))
        assert not begun.is_set()


def test_what_no_store_has_is_not_served(caplog):
    with mirrors() as (ours, lanes, _):
        ours.take(placement(5, BucketPlace(0, 4, (), (), "store")))
        wait_until(lambda: "can't be read back" in caplog.text, what="the error")
        assert ours.lost == len(BUCKETS)
        assert ours.served() == []
        ours.take(placement(6, BucketPlace(0, 4, (), (Joining(1, 6),), "store")))
        assert lanes.held == {}
