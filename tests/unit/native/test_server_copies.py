"""Copies of chunks on several servers: what is acknowledged is on all of them, nothing twice."""

from __future__ import annotations

import mmap
import socket
import struct
import threading

import numpy as np
import pytest
from copies import Copies, copies
from raw_client import Flag, Floats, Kind, RawClient, Reply, eventually, frame

from manyhands import _native
from manyhands.messages import Refusal

SIZE = 50
ONES = np.ones(SIZE, np.float32)


def silent(client: RawClient, for_s: float = 0.1) -> bool:
    """Nothing is answered, however long one waits; this is how long the test does."""
    client.sock.settimeout(for_s)
    try:
        return client.sock.recv(1, socket.MSG_PEEK) == b"never"
    except TimeoutError:
        return True
    finally:
        client.sock.settimeout(20)


def push_in_vain(client: RawClient, sequence: int, chunk: int = 0) -> None:
    client.send(Kind.DELTA, ONES.tobytes(), chunk=chunk, sequence=sequence)


def total(reply_or_values: Floats) -> float:
    return -float(reply_or_values[0])


class FakeCopy(RawClient):
    """The other end of a connection that a primary sends to, answering as the test says."""

    def __init__(self, c: Copies, primary: int, peer: int) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(ours, 0)
        c.servers[primary].adopt_peer(theirs.detach(), lane=0, peer=peer)
        self.expect(Kind.SHARE)
        self.answer(count=0)  # it is on another machine

    def expect(self, kind: Kind) -> None:
        assert self.receive().kind is kind

    def answer(self, *, kind: Kind = Kind.ACK, payload: bytes = b"", **fields: int) -> None:
        self.send(kind, payload, **fields)


def one_chunk(c: Copies) -> Copies:
    c.add(0, SIZE)
    c.serve()
    return c


def refused_as_stale(reply: Reply) -> bool:
    return (reply.kind, reply.count) == (Kind.REFUSED, Refusal.STALE_LEASE)


def test_no_chunk_is_served_before_it_is_held() -> None:
    with copies(1) as c:
        c.add(0, SIZE, rule=_native.Rule("adam"))
        c.start()
        client = c.connect(0, admin=True)
        assert refused_as_stale(client.push(0, ONES))
        for kind in (Kind.PULL, Kind.GET):
            assert refused_as_stale(client.ask(kind))
        assert refused_as_stale(client.ask(Kind.SET, ONES.tobytes()))
        assert c.snapshot(0) is None
        assert c.servers[0].progress().tolist() == []
        c.hold(0)
        assert client.push(0, ONES, sequence=1).seen == 1
        assert c.servers[0].progress().tolist() == [[0, 1, 1]]


def test_a_frame_names_the_lease_or_none() -> None:
    with copies(1) as c:
        c.add(0, SIZE)
        c.start()
        c.hold(0, lease=3)
        client = c.connect(0)
        for lease in (2, 4):
            assert refused_as_stale(client.push(0, ONES, lease=lease, sequence=1))
            assert refused_as_stale(client.ask(Kind.PULL, lease=lease))
        assert client.push(0, ONES, lease=3, sequence=1).seen == 1
        assert client.push(0, ONES, lease=0, sequence=2).seen == 2


def test_the_lease_lies_beside_the_version_in_shared_memory() -> None:
    with copies(2) as c:
        one_chunk(c)
        c.connect(0).push(0, ONES)
        for server, lease in ((0, 1), (1, 0)):
            native = c.servers[server]
            _, version = native.place_of(0)
            with mmap.mmap(native.memory_fd, native.memory_bytes, prot=mmap.PROT_READ) as memory:
                assert struct.unpack_from("<QI", memory, version) == (1, lease)


def test_a_lower_lease_is_ignored_and_a_role_can_end() -> None:
    with copies(1) as c:
        c.add(0, SIZE)
        c.start()
        client = c.connect(0)
        c.hold(0, lease=3)
        c.servers[0].hold([0], role="none", lease=2)
        assert client.push(0, ONES).seen == 1
        c.servers[0].hold([0], role="none", lease=3)
        assert refused_as_stale(client.ask(Kind.PULL))
        assert c.snapshot(0) is None
        c.hold(0, lease=4)
        assert total(client.pull(0)) == 1  # contents outlive a role


def test_an_update_is_on_every_copy_when_it_is_acknowledged() -> None:
    with copies(3) as c:
        one_chunk(c)
        client = c.connect(0)
        for version in range(1, 20):
            assert client.push(0, ONES).seen == version
            for server in range(3):
                found = c.snapshot(server)
                assert found is not None
                assert (found.version, found.last_lease, found.log) == (version, 1, {1: version})
                assert total(found.arrays[0]) == version
        assert c.servers[0].stats()["held_replies"] == 0
        assert c.servers[0].stats()["replicated_updates"] == 38


def test_a_copy_that_does_not_answer_holds_the_reply_back_but_not_the_reading() -> None:
    with copies(3) as c:
        one_chunk(c)
        client, reader = c.connect(0), c.connect(0, 2)
        client.push(0, ONES)
        c.servers[0].mute_peer(2, True)
        push_in_vain(client, 2)
        eventually(lambda: c.version(1) == 2)
        assert silent(client)
        assert total(reader.pull(0)) == 2  # readers may be ahead
        assert c.servers[0].stats()["held_replies"] == 1
        eventually(lambda: set(c.servers[0].lagging()) == {2})
        c.servers[0].mute_peer(2, False)
        assert client.receive().seen == 2
        c.assert_equal()
        assert c.servers[0].lagging() == {}


def test_replies_behind_a_held_one_are_not_held_up() -> None:
    with copies(2) as c:
        c.add(0, SIZE)
        c.add(1, SIZE)
        c.start()
        c.join(0, 1)
        c.hold(0, (1,), chunks=[0])
        c.hold(0, chunks=[1])
        client = c.connect(0)
        client.push(0, ONES)
        c.servers[0].mute_peer(1, True)
        push_in_vain(client, 2)
        assert client.push(1, ONES, sequence=2).chunk == 1
        assert client.ask(Kind.PULL, sequence=7).sequence == 7
        c.servers[0].mute_peer(1, False)
        assert (client.receive().chunk, c.version(1)) == (0, 2)


def test_a_replay_waits_for_everything_up_to_the_present_version() -> None:
    with copies(2) as c:
        one_chunk(c)
        client, other, again = c.connect(0), c.connect(0, 2), c.connect(0)
        client.push(0, ONES)
        c.servers[0].mute_peer(1, True)
        push_in_vain(other, 1)
        eventually(lambda: c.version(0) == 2)
        push_in_vain(again, 1)  # safe for long, but what lies over it is not
        assert silent(again)
        c.servers[0].mute_peer(1, False)
        assert (again.receive().seen, other.receive().seen) == (2, 2)
        assert c.servers[0].stats()["replays"] == 1


@pytest.mark.parametrize("values", [False, True])
def test_a_held_reply_survives_its_connection(values: bool) -> None:
    with copies(2) as c:
        one_chunk(c)
        gone = c.connect(0)
        gone.push(0, ONES)
        c.servers[0].mute_peer(1, True)
        flags = Flag.WANT_VALUES if values else Flag.NONE
        gone.send(Kind.DELTA, ONES.tobytes(), sequence=2, flags=flags)
        eventually(lambda: c.servers[0].stats()["held_replies"] == 1)
        gone.close()
        eventually(lambda: c.servers[0].stats()["connections"] == 0)
        again = c.connect(0)
        again.send(Kind.DELTA, ONES.tobytes(), sequence=2, flags=flags)
        eventually(lambda: c.servers[0].stats()["held_replies"] == 2)
        c.servers[0].mute_peer(1, False)
        reply = again.receive()
        assert (reply.kind, reply.seen) == (Kind.VALUES if values else Kind.ACK, 2)
        eventually(lambda: c.servers[0].stats()["held_replies"] == 0)
        assert total(again.pull(0)) == 2


def test_held_replies_of_a_connection_are_bounded_and_reading_resumes() -> None:
    frames = 20_000
    with copies(2) as c:
        one_chunk(c)
        client = c.connect(0)
        c.servers[0].mute_peer(1, True)
        sequences = range(1, frames + 1)
        stream = b"".join(frame(Kind.DELTA, ONES.tobytes(), sequence=s) for s in sequences)
        client.sock.settimeout(0.5)
        with pytest.raises(TimeoutError):  # it is no longer read from
            client.sock.sendall(stream)
        assert 256 <= c.servers[0].stats()["held_replies"] < 512
        client.close()
        eventually(lambda: c.servers[0].stats()["connections"] == 0)
        c.servers[0].mute_peer(1, False)
        eventually(lambda: c.servers[0].stats()["held_replies"] == 0)
        again = c.connect(0)
        sender = threading.Thread(target=again.sock.sendall, args=(stream,))
        sender.start()
        assert [again.receive().sequence for _ in sequences] == list(sequences)
        sender.join()
        assert total(again.pull(0)) == frames
        c.assert_equal()


# --- deaths


def test_the_primary_dies_and_a_mirror_goes_on_exactly_once() -> None:
    with copies(3) as c:
        one_chunk(c)
        client = c.connect(0)
        for _ in range(5):
            client.push(0, ONES)
        c.servers[0].stop()
        c.join(1, 2)
        c.hold(1, (2,), lease=2)
        moved = c.connect(1)
        assert moved.push(0, ONES, sequence=5, lease=2).seen == 5  # its answer might have been lost
        assert moved.push(0, ONES, sequence=6, lease=2).seen == 6
        assert total(moved.pull(0)) == 6
        c.assert_equal(1, 2)
        assert c.servers[1].stats()["snapshots_sent"] == 0  # they were in step


@pytest.mark.parametrize("reached", [(), (1,), (2,), (1, 2)])
def test_the_primary_dies_between_its_copies(reached: tuple[int, ...]) -> None:
    """An update that was never acknowledged is there or not, and sent again counts once."""
    with copies(3) as c:
        one_chunk(c)
        client = c.connect(0)
        client.push(0, ONES)
        for copy in (1, 2):
            if copy not in reached:
                c.servers[0].mute_peer(copy, True)
            else:  # it takes the update, and its answer is lost
                c.servers[copy].mute_peer(0, False)
        if set(reached) == {1, 2}:
            assert client.push(0, ONES, sequence=2).seen == 2
        else:
            push_in_vain(client, 2)
            eventually(lambda: all(c.version(copy) == 2 for copy in reached))
            assert silent(client)
        c.servers[0].stop()
        c.join(1, 2)
        c.hold(1, (2,), lease=2)
        moved = c.connect(1)
        assert moved.push(0, ONES, sequence=2).seen == 2
        assert moved.push(0, ONES, sequence=3).seen == 3
        assert total(moved.pull(0)) == 3
        c.assert_equal(1, 2)


def test_a_mirror_dies_and_the_reply_waits_for_the_placement() -> None:
    with copies(3) as c:
        one_chunk(c)
        client = c.connect(0)
        client.push(0, ONES)
        c.servers[2].stop()
        assert ("peer_lost", 2, 0, 0) in c.servers[0].wait_events(20)
        push_in_vain(client, 2)
        eventually(lambda: c.version(1) == 2)
        assert silent(client)
        eventually(lambda: 2 in c.servers[0].lagging())
        c.hold(0, (1,))
        assert client.receive().seen == 2
        assert client.push(0, ONES, sequence=3).seen == 3


def test_both_mirrors_die() -> None:
    with copies(3) as c:
        one_chunk(c)
        client = c.connect(0)
        c.servers[1].stop()
        c.servers[2].stop()
        push_in_vain(client, 1)
        assert silent(client)
        c.hold(0)
        assert client.receive().seen == 1


def test_primary_and_mirror_die() -> None:
    with copies(3) as c:
        one_chunk(c)
        client = c.connect(0)
        client.push(0, ONES)
        c.servers[0].stop()
        c.servers[1].stop()
        c.hold(2, lease=2)
        last = c.connect(2)
        assert last.push(0, ONES, sequence=1).seen == 1
        assert last.push(0, ONES, sequence=2).seen == 2


# --- the fence


def test_an_old_primary_acknowledges_nothing_and_steps_down() -> None:
    with copies(3) as c:
        one_chunk(c)
        old = c.connect(0)
        old.push(0, ONES)
        c.join(1, 2)
        c.hold(1, (2,), lease=2, tell=(1, 2))  # server 0 was paused and knows nothing of it
        new = c.connect(1, 2)
        assert new.push(0, ONES, lease=2).seen == 2
        assert refused_as_stale(old.push(0, ONES, sequence=2))
        fenced = [event for event in c.servers[0].wait_events(20) if event[0] == "fenced"]
        assert fenced == [("fenced", 0, 2, 0)]
        assert refused_as_stale(old.ask(Kind.PULL))
        assert total(new.pull(0)) == 2
        c.hold(0, (1, 2), lease=1, tell=(0,))  # old news
        assert refused_as_stale(old.push(0, ONES, sequence=2))
        assert new.push(0, ONES, sequence=2).seen == 3
        c.assert_equal(1, 2)


def test_the_fence_does_not_need_a_new_update() -> None:
    """It is enough that the new primary has told its copies of itself."""
    with copies(3) as c:
        one_chunk(c)
        old = c.connect(0)
        old.push(0, ONES)
        c.join(1, 2)
        c.servers[1].hold([0], role="primary", lease=2, mirrors=[2])
        eventually(lambda: refused_as_stale(c.connect(2).ask(Kind.PULL)))
        assert refused_as_stale(old.push(0, ONES, sequence=2))


def test_a_primary_that_hears_of_a_later_one_refuses_who_waits() -> None:
    with copies(3) as c:
        one_chunk(c)
        client = c.connect(0)
        client.push(0, ONES)
        c.servers[0].mute_peer(1, True)
        c.servers[0].mute_peer(2, True)
        push_in_vain(client, 2)
        eventually(lambda: c.servers[0].stats()["held_replies"] == 1)
        c.hold(1, (2,), lease=2, tell=(1, 2))
        c.servers[0].mute_peer(1, False)
        c.join(1, 0)
        c.servers[1].hold([0], role="primary", lease=2, mirrors=[2], joining=[(0, 7)])
        assert refused_as_stale(client.receive())
        c.join(1, 2)
        assert c.connect(1).push(0, ONES, sequence=2).seen == 2
        c.assert_equal(1, 2, 0)


def test_a_role_that_ends_refuses_who_waits() -> None:
    with copies(2) as c:
        one_chunk(c)
        client = c.connect(0)
        c.servers[0].mute_peer(1, True)
        push_in_vain(client, 1)
        eventually(lambda: c.servers[0].stats()["held_replies"] == 1)
        c.servers[0].hold([0], role="mirror", lease=2)
        assert refused_as_stale(client.receive())


# --- copies that are elsewhere


def test_a_copy_that_is_ahead_is_brought_back() -> None:
    with copies(3) as c:
        one_chunk(c)
        client = c.connect(0)
        client.push(0, ONES)
        c.servers[0].mute_peer(1, True)
        push_in_vain(client, 2)
        eventually(lambda: c.version(2) == 2)  # and nobody was told
        c.servers[0].stop()
        c.join(1, 2)
        c.hold(1, (2,), lease=2)
        eventually(lambda: c.version(2) == 1)
        moved = c.connect(1)
        assert moved.push(0, ONES, sequence=3).seen == 2
        assert c.servers[1].stats()["snapshots_sent"] == 1
        c.assert_equal(1, 2)


def test_a_copy_that_is_ahead_is_not_mistaken_when_the_primary_moves_on() -> None:
    """Both come to version 2, with different updates."""
    with copies(3) as c:
        one_chunk(c)
        client = c.connect(0)
        client.push(0, ONES)
        c.servers[0].mute_peer(1, True)
        push_in_vain(client, 2)
        eventually(lambda: c.version(2) == 2)
        c.servers[0].stop()
        c.hold(1, lease=2)
        moved = c.connect(1, 9)
        assert moved.push(0, 5 * ONES).seen == 2
        c.join(1, 2)
        c.hold(1, (2,), lease=2)
        assert moved.push(0, ONES).seen == 3
        c.assert_equal(1, 2)
        assert total(moved.pull(0)) == 7


def test_a_connection_that_breaks_with_unanswered_updates_is_made_good() -> None:
    with copies(2) as c:
        one_chunk(c)
        client = c.connect(0)
        client.push(0, ONES)
        for sequence in range(2, 30):
            c.servers[1].mute_peer(0, sequence % 2 == 0)  # they arrive, or lie unread
            push_in_vain(client, sequence)
            eventually(lambda s=sequence: c.version(0) == s)
            if sequence % 3 == 0:
                c.servers[0].drop_peer(1)
            c.servers[1].mute_peer(0, False)
            c.join(0, 1)
            assert client.receive().sequence == sequence
        assert total(client.pull(0)) == 29
        c.assert_equal()


def test_what_an_older_connection_still_brings_changes_nothing() -> None:
    with copies(2) as c:
        one_chunk(c)
        client = c.connect(0)
        client.push(0, ONES)
        late, unread = socket.socketpair()
        c.servers[1].mute_peer(0, True)
        c.servers[1].adopt(unread.detach(), lane=0, client=0, peer=0)
        snapshot = c.servers[0].collect(0)
        assert snapshot is not None
        late.sendall(frame(Kind.SNAPSHOT, snapshot, lease=1, count=1, client=0))
        c.servers[1].mute_peer(0, False)
        c.join(0, 1)
        assert client.push(0, ONES, sequence=2).seen == 2
        late.close()
        assert client.push(0, ONES, sequence=3).seen == 3
        c.assert_equal()


def test_an_update_for_the_same_version_of_another_history_is_refused() -> None:
    with copies(2) as c:
        c.add(0, SIZE)
        c.start()
        c.hold(0)
        c.connect(0).push(0, ONES)
        snapshot = c.servers[0].collect(0)
        assert snapshot is not None
        ours, theirs = socket.socketpair()
        c.servers[1].adopt(theirs.detach(), lane=0, client=0, peer=5)
        primary = RawClient(ours, 0)
        assert primary.ask(Kind.SNAPSHOT, snapshot, lease=1, count=1).seen == 1
        assert primary.ask(Kind.ALIGN, lease=2, seen=1, place=2).count == 0  # it stands at (1, 1)
        update = {"lease": 2, "seen": 1, "sequence": 9, "client": 3, "flags": Flag.REPLICATED}
        reply = primary.ask(Kind.DELTA, ONES.tobytes(), place=2, **update)
        assert (reply.kind, reply.count) == (Kind.REFUSED, Refusal.OUT_OF_STEP)
        for _ in range(2):  # and one for its own place only once
            reply = primary.ask(Kind.DELTA, ONES.tobytes(), place=1, **update)
        assert (reply.kind, reply.count, c.version(1)) == (Kind.REFUSED, Refusal.OUT_OF_STEP, 2)
        assert refused_as_stale(primary.ask(Kind.ALIGN, lease=1, seen=2, place=2))
        ours.close()


# --- joining


def test_a_joining_copy_is_filled_and_then_required() -> None:
    with copies(2) as c:
        c.add(0, SIZE, rule=_native.Rule("adagrad"), start=0.1)
        c.add(1, 70_000, rule=_native.Rule("adam"))
        c.start()
        c.hold(0)
        client = c.connect(0)
        for chunk, size in ((0, SIZE), (1, 70_000)):
            client.push(chunk, np.ones(size, np.float32), sequence=1)
        c.join(0, 1)
        c.hold(0, joining=[(1, 5)])
        told: set[tuple[str, int, int, int]] = set()
        eventually(lambda: bool(told.update(c.servers[0].wait_events(1)) or len(told) == 2))
        assert told == {("in_step", 1, 0, 5), ("in_step", 1, 1, 5)}
        c.assert_equal()
        c.servers[0].mute_peer(1, True)
        push_in_vain(client, 2)
        assert silent(client)  # it may be a mirror by now
        c.servers[0].drop_peer(1)
        assert silent(client)
        c.join(0, 1)
        c.servers[0].mute_peer(1, False)
        assert client.receive().seen == 2


def test_in_step_is_told_again_when_the_copy_is_listed_again_and_not_of_another() -> None:
    with copies(2) as c:
        c.add(0, SIZE)
        c.start()
        c.join(0, 1)
        for since, told in ((5, 5), (5, 5), (6, 6)):
            c.hold(0, joining=[(1, since)])
            assert c.servers[0].wait_events(20) == [("in_step", 1, 0, told)]
        c.hold(0, (1,))
        assert c.servers[0].wait_events(0.05) == []


def test_a_joining_copy_that_is_not_in_step_yet_holds_nobody_up() -> None:
    with copies(2) as c:
        c.add(0, SIZE)
        c.start()
        c.hold(0, joining=[(1, 5)])  # there is not even a connection
        client = c.connect(0)
        assert client.push(0, ONES).seen == 1
        c.servers[0].mute_peer(1, True)
        c.join(0, 1)
        assert client.push(0, ONES).seen == 2
        c.servers[0].mute_peer(1, False)
        assert c.servers[0].wait_events(20) == [("in_step", 1, 0, 5)]
        c.assert_equal()


def test_a_joining_copy_is_required_from_its_snapshot_on() -> None:
    """What is acknowledged after the snapshot left must be there when it is said to be in step."""
    with copies(1) as c:
        c.add(0, SIZE)
        c.start()
        c.hold(0)
        client = c.connect(0)
        client.push(0, ONES)
        copy = FakeCopy(c, 0, peer=1)
        c.hold(0, joining=[(1, 5)])
        copy.expect(Kind.ALIGN)
        assert client.push(0, ONES).seen == 2  # it is not in step: nobody waits for it
        copy.answer(count=0)
        copy.expect(Kind.SNAPSHOT)
        push_in_vain(client, 3)
        copy.expect(Kind.DELTA)
        assert silent(client)
        assert c.servers[0].wait_events(0) == []
        copy.answer(seen=2)
        assert c.servers[0].wait_events(20) == [("in_step", 1, 0, 5)]
        assert silent(client)
        copy.answer(seen=3)
        assert client.receive().seen == 3
        copy.close()


def test_a_joining_copy_that_is_lost_before_it_is_in_step_is_not_required() -> None:
    with copies(1) as c:
        c.add(0, SIZE)
        c.start()
        c.hold(0)
        client = c.connect(0)
        client.push(0, ONES)
        copy = FakeCopy(c, 0, peer=1)
        c.hold(0, joining=[(1, 5)])
        copy.expect(Kind.ALIGN)
        copy.answer(count=0)
        copy.expect(Kind.SNAPSHOT)
        push_in_vain(client, 2)
        assert silent(client)
        copy.close()
        assert client.receive().seen == 2
        assert c.servers[0].wait_events(20) == [("peer_lost", 1, 0, 0)]


def test_a_copy_that_answers_the_same_after_the_primary_moved_on_gets_a_snapshot() -> None:
    with copies(1) as c:
        c.add(0, SIZE)
        c.start()
        client = c.connect(0)
        copy = FakeCopy(c, 0, peer=1)
        c.hold(0, joining=[(1, 5)])
        copy.expect(Kind.ALIGN)
        assert client.push(0, ONES).seen == 1
        copy.answer(count=1)
        copy.expect(Kind.SNAPSHOT)
        assert c.servers[0].wait_events(0) == []
        copy.answer(seen=1)
        assert c.servers[0].wait_events(20) == [("in_step", 1, 0, 5)]
        copy.close()


def test_answers_from_before_a_new_lease_do_not_count() -> None:
    with copies(1) as c:
        c.add(0, SIZE)
        c.start()
        client = c.connect(0)
        copy = FakeCopy(c, 0, peer=1)
        c.hold(0, (1,))
        copy.expect(Kind.ALIGN)
        copy.answer(count=1)
        push_in_vain(client, 1)
        copy.expect(Kind.DELTA)
        c.hold(0, (1,), lease=3)
        copy.expect(Kind.ALIGN)
        copy.answer(seen=1)  # to the update of lease 1; somebody may have undone it under lease 2
        assert silent(client)
        copy.answer(count=0)
        copy.expect(Kind.SNAPSHOT)
        assert silent(client)
        copy.answer(seen=1)
        assert client.receive().seen == 1
        copy.close()


@pytest.mark.parametrize("refusal", list(Refusal))
def test_whatever_a_copy_refuses_nothing_is_acknowledged_without_it(refusal: Refusal) -> None:
    with copies(1) as c:
        c.add(0, SIZE)
        c.start()
        client = c.connect(0)
        copy = FakeCopy(c, 0, peer=1)
        c.hold(0, (1,))
        copy.expect(Kind.ALIGN)
        copy.answer(count=1)
        push_in_vain(client, 1)
        copy.expect(Kind.DELTA)
        copy.answer(kind=Kind.REFUSED, count=refusal, payload=b"No.")
        if refusal is Refusal.STALE_LEASE:
            assert refused_as_stale(client.receive())
            assert c.servers[0].wait_events(20) == [("fenced", 0, 2, 0)]
        elif refusal is Refusal.OUT_OF_STEP:
            copy.expect(Kind.SNAPSHOT)
            assert silent(client)
            copy.answer(seen=1)
            assert client.receive().seen == 1
        else:
            assert c.servers[0].wait_events(20) == [("peer_lost", 1, 0, 0)]
            assert silent(client)
        copy.close()


@pytest.mark.parametrize("noise", [b"x" * 64, frame(Kind.PULL), frame(Kind.ACK)])
def test_a_copy_that_talks_nonsense_is_lost(noise: bytes) -> None:
    with copies(1) as c:
        c.add(0, SIZE)
        c.start()
        c.hold(0)
        copy = FakeCopy(c, 0, peer=1)
        copy.sock.sendall(noise)  # nothing was asked
        assert c.servers[0].wait_events(20) == [("peer_lost", 1, 0, 0)]
        copy.close()


def test_joining_while_pushes_go_on() -> None:
    with copies(3) as c:
        c.add(0, 1000, rule=_native.Rule("sgd", momentum=0.5))
        c.start()
        c.hold(0)
        clients = [c.connect(0, client) for client in range(1, 5)]
        ones = np.ones(1000, np.float32)
        for sequence in range(1, 200):
            for client in clients:
                client.send(Kind.DELTA, ones.tobytes(), sequence=sequence)
            if sequence == 50:
                c.join(0, 1)
                c.hold(0, joining=[(1, 3)])
            if sequence == 100:
                c.join(0, 2)
                c.hold(0, (1,), joining=[(2, 8)])
            for client in clients:
                assert client.receive().sequence == sequence
        c.hold(0, (1, 2))
        assert clients[0].push(0, ones, sequence=500).seen == 4 * 199 + 1
        c.assert_equal()


# --- snapshots by hand


def test_a_snapshot_restores_a_chunk_elsewhere() -> None:
    with copies(2) as c:
        c.add(0, SIZE, rule=_native.Rule("adam"))
        c.start()
        c.hold(0)
        client = c.connect(0)
        for _ in range(3):
            client.push(0, ONES, rate=0.25)
        snapshot = c.servers[0].collect(0)
        assert snapshot is not None
        assert c.servers[0].collect(0, since=3) is None
        assert c.servers[0].collect(0, since=2) == snapshot
        c.servers[1].restore(0, snapshot, 9)
        assert c.servers[1].collect(0) == snapshot
        c.hold(1, lease=9)
        moved = c.connect(1)
        assert moved.push(0, ONES, sequence=3).seen == 3
        assert moved.push(0, ONES, sequence=4, rate=0.25).seen == 4
        client.push(0, ONES, sequence=4, rate=0.25)
        here, there = c.snapshot(0), c.snapshot(1)
        assert here is not None
        assert there is not None
        np.testing.assert_array_equal(here.arrays, there.arrays)
        assert (here.last_lease, there.last_lease) == (1, 9)


def test_what_is_no_snapshot_of_the_chunk_is_not_restored() -> None:
    with copies(2) as c:
        c.add(0, SIZE)
        c.start()
        c.hold(0)
        good = c.servers[0].collect(0)
        assert good is not None
        for bad in (b"", good[:39], good[:-1], good + b"\0", good[:20] + b"\7" + good[21:]):
            with pytest.raises(ValueError, match="no snapshot"):
                c.servers[1].restore(0, bad, 1)
        with pytest.raises(ValueError, match="too late"):
            c.servers[0].restore(0, good, 1)
        with pytest.raises(ValueError, match="does not hold chunk 7"):
            c.servers[0].collect(7)


def test_a_server_without_copies_takes_no_part() -> None:
    server = _native.ChunkServer(lanes=1)
    server.add_chunk(
        0, lane=0, parameter=0, first_row=0, rows=1, row_floats=1, rule=_native.Rule("sgd"),
        state_starts=[],
    )  # fmt: skip
    server.start()
    with pytest.raises(ValueError, match="replicated=True"):
        server.hold([0], role="primary", lease=1)
    assert server.collect(0) is not None
    server.stop()
    with pytest.raises(ValueError, match="not running"):
        server.collect(0)


def test_wrong_roles_are_refused() -> None:
    with copies(1) as c:
        c.add(0, 1)
        c.start()
        with pytest.raises(ValueError, match="'boss'"):
            c.servers[0].hold([0], role="boss", lease=1)
        with pytest.raises(ValueError, match="lease 0"):
            c.servers[0].hold([0], role="primary", lease=0)
        with pytest.raises(ValueError, match="chunk 4"):
            c.servers[0].hold([4], role="primary", lease=1)
