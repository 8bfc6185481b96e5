"""Copies that are being filled, and snapshots: from when on a copy has to have everything."""

from __future__ import annotations

import numpy as np
import pytest
from copies import (
    ONES,
    SIZE,
    FakeCopy,
    copies,
    push_in_vain,
    refused_as_stale,
    silent,
)
from raw_client import Kind, eventually, frame

from manyhands import _native
from manyhands.messages import Refusal


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
        c.add(0, SIZE, rule=_native.Rule("adam"))  # its updates are not worth a snapshot
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


def test_what_comes_while_a_joining_copy_is_filled_goes_into_the_next_snapshot() -> None:
    with copies(1) as c:
        c.add(0, SIZE)
        c.start()
        c.hold(0)
        clients = [c.connect(0, client) for client in range(1, 4)]
        clients[0].push(0, ONES)
        copy = FakeCopy(c, 0, peer=1)
        c.hold(0, joining=[(1, 5)])
        copy.expect(Kind.ALIGN)
        copy.answer(count=0)
        copy.expect(Kind.SNAPSHOT)
        for client in clients:
            push_in_vain(client, 2)
        eventually(lambda: c.version(0) == 4)
        copy.answer(seen=1)
        assert c.servers[0].wait_events(20) == [("in_step", 1, 0, 5)]
        copy.expect(Kind.SNAPSHOT)  # of all three
        assert all(silent(client, 0.05) for client in clients)
        copy.answer(seen=4)
        assert sorted(client.receive().seen for client in clients) == [2, 3, 4]
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
