"""The chunk server: pushes, pulls, arrays, versions and sequences, over raw sockets."""

from __future__ import annotations

import mmap
import select
import struct

import numpy as np
import pytest
from raw_client import Encoding, Flag, Floats, Harness, Kind, eventually, frame, harness
from torch import nn, optim, tensor

from manyhands import _native
from manyhands.messages import Refusal


def floats(size: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def started(*sizes: int, h: Harness, rule: _native.Rule | None = None) -> Harness:
    for chunk, size in enumerate(sizes):
        h.add(chunk, size, rule=rule)
    h.server.start()
    return h


@pytest.mark.parametrize("tcp", [False, True])
@pytest.mark.parametrize("refuse_nonfinite", [False, True])
@pytest.mark.parametrize("size", [1, 7, 1024, 30_000, 40_000, 70_000, 1 << 20])
def test_a_push_is_applied_and_acknowledged(size: int, refuse_nonfinite: bool, tcp: bool) -> None:
    with harness(refuse_nonfinite=refuse_nonfinite) as h:
        started(size, h=h)
        client = h.connect(tcp=tcp)
        expected = np.zeros(size, np.float32)
        for version in range(1, 4):
            gradient = floats(size, version)
            reply = client.push(0, gradient, rate=0.5)
            assert (reply.kind, reply.seen, reply.sequence) == (Kind.ACK, version, version)
            expected -= 0.5 * gradient
        np.testing.assert_allclose(client.pull(0), expected, rtol=1e-5, atol=1e-6)


def test_many_frames_in_one_write_are_answered_in_order() -> None:
    with harness() as h:
        started(100, 33, h=h)
        client = h.connect()
        one, two = floats(100, 1), floats(33, 2)
        client.sock.sendall(
            b"".join(
                frame(Kind.DELTA, (one if i % 2 == 0 else two).tobytes(), chunk=i % 2, sequence=i)
                for i in range(1000)
            )
            + frame(Kind.PULL, chunk=0)
        )
        for i in range(1000):
            reply = client.receive()
            assert (reply.kind, reply.chunk, reply.sequence) == (Kind.ACK, i % 2, i)
            assert reply.seen == i // 2 + 1
        last = client.receive()
        assert (last.kind, last.seen) == (Kind.VALUES, 500)
        np.testing.assert_allclose(last.floats, -500 * one, rtol=1e-3)


def test_a_frame_may_arrive_byte_by_byte() -> None:
    with harness() as h:
        started(5, h=h)
        client = h.connect()
        data = frame(Kind.DELTA, floats(5).tobytes(), sequence=1) + frame(Kind.PULL)
        for i in range(len(data)):
            client.sock.sendall(data[i : i + 1])
        assert client.receive().kind is Kind.ACK
        np.testing.assert_allclose(client.receive().floats, -floats(5))


def test_waiting_updates_of_many_clients_are_all_applied() -> None:
    with harness() as h:
        started(10_000, h=h, rule=_native.Rule("sgd", momentum=0.5))
        clients = [h.connect(client) for client in range(20)]
        for i, client in enumerate(clients):
            client.send(Kind.DELTA, floats(10_000, i).tobytes(), sequence=1, rate=0.1)
        versions = sorted(client.receive().seen for client in clients)
        assert versions == list(range(1, 21))
        assert h.server.stats()["updates"] == 20
        assert sum(h.server.stats()["staleness"]) == 20


def test_adam_counts_its_steps() -> None:
    size = 300
    with harness() as h:
        started(size, h=h, rule=_native.Rule("adam"))
        client = h.connect()
        weight = nn.Parameter(tensor(np.zeros(size, np.float32)))
        adam = optim.Adam([weight], lr=0.01)
        for step in range(5):
            gradient = floats(size, step)
            client.push(0, gradient, rate=0.01)
            weight.grad = tensor(gradient)
            adam.step()
        np.testing.assert_allclose(client.pull(0), weight.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_an_update_may_ask_for_values() -> None:
    with harness() as h:
        started(50, h=h)
        reply = h.connect().push(0, floats(50), flags=Flag.WANT_VALUES)
        assert (reply.kind, reply.seen) == (Kind.VALUES, 1)
        np.testing.assert_allclose(reply.floats, -floats(50))


def test_an_administrator_sets_and_gets_arrays() -> None:
    with harness() as h:
        h.add(7, 30, rule=_native.Rule("adagrad"), start=0.25)
        h.server.start()
        admin = h.connect(admin=True)
        assert admin.set(7, floats(30)).kind is Kind.ACK
        assert admin.set(7, floats(30, 1), array=1).seen == 2  # each is an update
        np.testing.assert_array_equal(admin.pull(7), floats(30))
        for array in (0, 1):
            got = admin.ask(Kind.GET, chunk=7, count=array)
            np.testing.assert_array_equal(got.floats, floats(30, array))
        refused = h.connect().set(7, floats(30))
        assert (refused.kind, refused.count) == (Kind.REFUSED, Refusal.NOT_ALLOWED)
        beyond = admin.ask(Kind.GET, chunk=7, count=2)
        assert (beyond.kind, beyond.count) == (Kind.REFUSED, Refusal.WRONG_SIZE)


def test_states_begin_as_asked() -> None:
    with harness() as h:
        h.add(0, 9, rule=_native.Rule("adagrad"), start=0.1)
        h.server.start()
        got = h.connect(admin=True).ask(Kind.GET, count=1).floats
        np.testing.assert_array_equal(got, np.full(9, 0.1, np.float32))


@pytest.mark.parametrize("encoding", ["bfloat16", "int8"])
def test_values_can_be_pulled_encoded(encoding: str) -> None:
    number = Encoding[encoding.upper()]
    with harness() as h:
        started(3000, 10, h=h)
        client = h.connect(admin=True)
        client.set(0, floats(3000))
        for _ in range(3):
            client.send(Kind.PULL, chunk=0, encoding=number)
            client.send(Kind.PULL, chunk=1)
        for _ in range(3):
            reply = client.receive()
            assert reply.encoding is number
            values = np.empty(3000, np.float32)
            _native.decode(encoding, reply.payload, 3000, values)
            np.testing.assert_allclose(values, floats(3000), atol=0.03)
            assert client.receive().floats.size == 10


def test_weights_and_versions_lie_in_shared_memory() -> None:
    with harness(lanes=2) as h:
        h.add(0, 100, lane=0)
        h.add(1, 50, 3, lane=1)
        h.server.start()
        h.connect(lane=1).push(1, floats(150))
        weights, version = h.server.place_of(1)
        assert weights % 64 == 0
        with mmap.mmap(h.server.memory_fd, h.server.memory_bytes, prot=mmap.PROT_READ) as memory:
            assert struct.unpack_from("<Q", memory, version) == (1,)
            seen = np.frombuffer(memory[weights : weights + 600], np.float32)
            np.testing.assert_allclose(seen, -floats(150))
        with pytest.raises(PermissionError):
            mmap.mmap(h.server.memory_fd, h.server.memory_bytes)


def test_a_client_that_reads_nothing_is_not_read_from_either() -> None:
    size = 1 << 18
    with harness() as h:
        started(size, h=h)
        deaf, other = h.connect(1), h.connect(2)
        deaf.sock.setblocking(False)
        while select.select([], [deaf.sock], [], 0.2)[1]:
            deaf.sock.send(frame(Kind.PULL) * 64)
        eventually(lambda: h.server.stats()["blocked_replies"] >= 1)
        assert other.push(0, floats(size)).kind is Kind.ACK  # others are served
        deaf.sock.settimeout(20)
        for _ in range(200):
            assert deaf.receive().floats.size == size


def test_stop_closes_every_connection_and_may_be_repeated() -> None:
    with harness() as h:
        started(4, h=h)
        client = h.connect()
        client.push(0, floats(4))
        h.server.stop()
        h.server.stop()
        assert client.is_closed()
        with pytest.raises(ValueError, match="not running"):
            h.connect()


def test_counts_bytes_and_frames() -> None:
    with harness() as h:
        started(10, h=h)
        client = h.connect()
        client.push(0, floats(10))
        client.pull(0)
        stats = h.server.stats()
        assert (stats["pushed_bytes"], stats["pulled_bytes"], stats["frames"]) == (40, 40, 2)
        assert stats["rounds"] >= 2
        assert stats["busy_s"] > 0
        assert stats["waiting_bytes"] == 0


def test_wrong_set_ups_are_refused() -> None:
    rule = _native.Rule("adagrad")
    with pytest.raises(ValueError, match="no lanes"):
        _native.ChunkServer(lanes=0)
    with pytest.raises(ValueError, match="'often'"):
        _native.ChunkServer(lanes=1, staleness="often")
    with harness() as h:
        with pytest.raises(ValueError, match="for lane 1; the server has 1"):
            h.add(0, 4, lane=1)
        with pytest.raises(ValueError, match="no rows"):
            h.add(0, 0)
        with pytest.raises(ValueError, match="0 state starts; expected 1"):
            h.server.add_chunk(
                0, lane=0, parameter=0, first_row=0, rows=1, row_floats=1, rule=rule,
                state_starts=[],
            )  # fmt: skip
        with pytest.raises(ValueError, match="at most 16777216"):
            h.add(0, 1 << 25)
        with pytest.raises(ValueError, match="before it starts"):
            _ = h.server.memory_fd
        h.add(0, 4)
        with pytest.raises(ValueError, match="added before"):
            h.add(0, 4)
        h.server.start()
        with pytest.raises(ValueError, match="before the server starts"):
            h.add(1, 4)
        with pytest.raises(ValueError, match="lane 3"):
            h.connect(lane=3)
