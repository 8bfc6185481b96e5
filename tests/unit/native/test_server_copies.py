"""Copies of chunks on several servers: what is acknowledged is on all of them."""

from __future__ import annotations

import mmap
import struct
import threading

import pytest
from copies import (
    ONES,
    SIZE,
    copies,
    one_chunk,
    push_in_vain,
    refused_as_stale,
    silent,
    total,
)
from raw_client import Flag, Kind, eventually, frame

from manyhands import _native


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
        eventually(lambda: c.servers[0].stats()["held_replies"] >= 256)
        assert c.servers[0].stats()["held_replies"] < 512
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
