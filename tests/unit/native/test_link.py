"""What a link sends, how answers reach the caller's arrays, and that windows and buffers hold."""

from __future__ import annotations

import select
import socket
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from fake_server import (
    BY_REFERENCE,
    DELTA,
    FACTORS,
    GET,
    HEADER,
    PULL,
    ROWS,
    SET,
    WANT_VALUES,
    FakeServer,
)

from manyhands import _native

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

CLIENT = 77


class Flat:
    """Chunks one after another in a flat array, each start a multiple of 16 floats."""

    def __init__(self, *sizes: int) -> None:
        self.chunks = np.arange(10, 10 + len(sizes), dtype=np.int64)
        self.counts = np.array(sizes, np.int64)
        padded = (self.counts + 15) // 16 * 16
        self.starts = np.concatenate([[0], np.cumsum(padded)[:-1]]).astype(np.int64)
        self.floats = int(padded.sum())
        self.versions = np.zeros(len(sizes), np.int64)

    @property
    def where(self) -> tuple[Integers, Integers, Integers]:
        return self.chunks, self.starts, self.counts

    def random(self, seed: int) -> Floats:
        return np.random.default_rng(seed).normal(size=self.floats).astype(np.float32)

    def part(self, flat: Floats, i: int) -> Floats:
        return flat[self.starts[i] : self.starts[i] + self.counts[i]]

    def parts(self, flat: Floats) -> dict[int, Floats]:
        return {int(c): self.part(flat, i).copy() for i, c in enumerate(self.chunks)}

    def inside(self) -> npt.NDArray[np.bool_]:
        mask = np.zeros(self.floats, bool)
        for i in range(len(self.chunks)):
            mask[self.starts[i] : self.starts[i] + self.counts[i]] = True
        return mask


def link_to(server: FakeServer, **settings: object) -> _native.Link:
    return _native.Link(server.fd(), client=CLIENT, **settings)  # type: ignore[arg-type]


@pytest.fixture
def flat() -> Flat:
    return Flat(5, 300, 16, 1000)


def test_a_push_is_applied_and_returns_versions(flat: Flat) -> None:
    weights, grad = flat.random(1), flat.random(2)
    flat.versions[:] = [3, 4, 5, 6]
    outcomes = np.zeros(4, np.int8)
    with FakeServer(flat.parts(weights), versions={10: 7, 11: 8, 12: 9, 13: 10}) as server:
        link = link_to(server)
        link.push(
            *flat.where, grad, rate=0.5, steps=3, sequence=40, versions=flat.versions,
            leases=np.arange(21, 25), outcomes=outcomes,
        )  # fmt: skip
        link.close()
    assert flat.versions.tolist() == [8, 9, 10, 11]
    for i, chunk in enumerate(flat.chunks):
        expected = flat.part(weights, i) - np.float32(0.5) * flat.part(grad, i)
        np.testing.assert_array_equal(server.chunks[int(chunk)], expected)
    first = server.frames[0]
    assert [f.sequence for f in server.frames] == [40] * 4
    assert [f.lease for f in server.frames] == [21, 22, 23, 24]
    assert outcomes.tolist() == [1] * 4
    assert [f.seen for f in server.frames] == [3, 4, 5, 6]
    assert (first.kind, first.client, first.lease, first.rate, first.steps, first.flags) == (
        (DELTA, CLIENT, 21, 0.5, 3, 0)
    )
    assert link.pushed_bytes == 4 * int(flat.counts.sum())
    assert link.pulled_bytes == 0


def test_a_chunk_may_be_sent_several_updates_in_a_call() -> None:
    flat = Flat(8)
    where = [np.repeat(array, 3) for array in flat.where]
    with FakeServer(flat.parts(np.zeros(16, np.float32))) as server:
        link = link_to(server)
        link.push(
            *where, np.ones(16, np.float32), rate=-1.0, steps=1, sequence=5, rising=True,
            versions=np.zeros(3, np.int64),
        )  # fmt: skip
        link.close()
    assert [f.sequence for f in server.frames] == [5, 6, 7]
    assert server.chunks[10].tolist() == [3.0] * 8


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_a_pull_fills_its_ranges_only(flat: Flat, dtype: type) -> None:
    weights, out = flat.random(1), flat.random(2)
    expected = np.where(flat.inside(), weights, out)
    with FakeServer(flat.parts(weights), versions={10: 7}) as server:
        link = link_to(server)
        chunks = flat.chunks.astype(dtype)
        link.pull(chunks, flat.starts, flat.counts, out, versions=flat.versions)
        link.close()
    np.testing.assert_array_equal(out, expected)
    assert flat.versions.tolist() == [7, 0, 0, 0]
    assert {f.kind for f in server.frames} == {PULL}
    assert link.pulled_bytes == 4 * int(flat.counts.sum())


@pytest.mark.parametrize("encoding", ["bfloat16", "int8"])
def test_a_pull_may_be_encoded(flat: Flat, encoding: str) -> None:
    weights, out = flat.random(1), np.zeros(flat.floats, np.float32)
    with FakeServer(flat.parts(weights)) as server:
        link = link_to(server)
        link.pull(*flat.where, out, versions=flat.versions, encoding=encoding)
        link.close()
    for i in range(4):
        peak = np.abs(flat.part(weights, i)).max()
        np.testing.assert_allclose(flat.part(out, i), flat.part(weights, i), atol=peak / 127)
    assert link.pulled_bytes < 2.1 * flat.counts.sum()


@pytest.mark.parametrize("encoding", ["float32", "bfloat16", "int8", "topk"])
def test_sent_is_what_the_server_decodes(flat: Flat, encoding: str) -> None:
    grad, sent = flat.random(1), np.full(flat.floats, 9.0, np.float32)
    with FakeServer(flat.parts(np.zeros(flat.floats, np.float32))) as server:
        link = link_to(server)
        link.push(
            *flat.where, grad, rate=-1.0, steps=1, sequence=1, versions=flat.versions,
            encoding=encoding, keep=0.1, sent=sent,
        )  # fmt: skip
        link.close()
    for i, chunk in enumerate(flat.chunks):
        np.testing.assert_array_equal(server.chunks[int(chunk)], flat.part(sent, i))
    assert np.all(sent[~flat.inside()] == 9.0)
    if encoding == "topk":
        assert [f.count for f in server.frames] == [1, 30, 2, 100]


def test_push_pull_returns_the_updated_values(flat: Flat) -> None:
    weights, grad, out = flat.random(1), flat.random(2), np.zeros(flat.floats, np.float32)
    with FakeServer(flat.parts(weights)) as server:
        link = link_to(server)
        link.push_pull(
            *flat.where, grad, out, rate=1.0, steps=1, sequence=1, versions=flat.versions
        )
        link.close()
    np.testing.assert_array_equal(out, np.where(flat.inside(), weights - grad, 0))
    assert flat.versions.tolist() == [1, 1, 1, 1]
    assert all(f.flags == WANT_VALUES for f in server.frames)


def test_factors_travel_one_behind_the_other(flat: Flat) -> None:
    a, d = flat.random(1)[:12].reshape(3, 4), flat.random(2)[:15].reshape(3, 5)
    with FakeServer(flat.parts(flat.random(3))) as server:
        link = link_to(server)
        settings = {"rate": 0.1, "steps": 2, "seen": 5}
        assert link.push_factors(10, a, d, sequence=8, **settings) == 1
        assert link.push_factors(10, a, d, sequence=9, encoding="bfloat16", **settings) == 2
        link.close()
    plain, half = server.frames
    assert (plain.kind, plain.count, plain.sequence, plain.seen) == (FACTORS, 3, 8, 5)
    assert plain.payload == a.tobytes() + d.tobytes()
    assert half.payload == _native.encode("bfloat16", a) + _native.encode("bfloat16", d)
    assert half.encoding == "bfloat16"


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_rows_travel_with_their_numbers(flat: Flat, dtype: type) -> None:
    rows, values = np.array([4, 0, 4], dtype), flat.random(1)[:15].reshape(3, 5)
    with FakeServer(flat.parts(flat.random(3))) as server:
        link = link_to(server)
        versions = np.array([5])
        link.push_rows(
            np.array([11]), np.array([0]), np.array([3]), rows, values.reshape(-1),
            value_starts=np.array([0]), widths=np.array([5]), rate=0.1, steps=2, sequence=8,
            versions=versions,
        )  # fmt: skip
        assert versions.tolist() == [1]
        link.close()
    (frame,) = server.frames
    assert (frame.kind, frame.count, frame.sequence, frame.seen) == (ROWS, 3, 8, 5)
    assert frame.payload == np.array([4, 0, 4], np.uint32).tobytes() + values.tobytes()


def test_arrays_are_set_and_got(flat: Flat) -> None:
    values, out = flat.random(1)[:300], np.zeros(300, np.float32)
    with FakeServer(flat.parts(flat.random(3)), versions={11: 6}) as server:
        link = link_to(server)
        link.set(11, 2, values, sequence=9, lease=3)
        assert link.get(11, 2, out, lease=4) == (6, 0)
        link.close()
    np.testing.assert_array_equal(out, values)
    assert [(f.kind, f.count) for f in server.frames] == [(SET, 2), (GET, 2)]
    assert [(f.sequence, f.lease) for f in server.frames] == [(9, 3), (0, 4)]


def test_a_call_without_chunks_sends_nothing() -> None:
    nothing = np.zeros(0, np.int64)
    with FakeServer({}) as server:
        link = link_to(server)
        link.pull(nothing, nothing, nothing, np.zeros(4, np.float32), versions=nothing)
        link.close()
    assert server.frames == []


def test_small_requests_leave_together() -> None:
    flat = Flat(*[8] * 12)
    server, arrived = FakeServer(flat.parts(flat.random(1))), []

    def serve(sock: socket.socket) -> None:
        arrived.append(len(sock.recv(1 << 16, socket.MSG_PEEK)))
        server.answer_all(sock)

    server.serve = serve
    with server:
        link = link_to(server, window=24)  # half of it leaves at once
        link.pull(*flat.where, flat.random(2), versions=flat.versions)
        link.close()
    assert arrived == [12 * HEADER.size]


@pytest.mark.parametrize("window", [1, 3])
def test_no_more_than_the_window_is_unanswered(window: int) -> None:
    flat = Flat(*[8] * 9)
    server = FakeServer(flat.parts(flat.random(1)))

    def serve(sock: socket.socket) -> None:
        while True:
            waiting = [next(server.requests(sock)) for _ in range(window)]
            assert not select.select([sock], [], [], 0.02)[0]
            for frame in reversed(waiting):  # answers may come in any order
                sock.sendall(server.reply_to(frame).pack())

    server.serve = serve
    out = np.zeros(flat.floats, np.float32)
    with server:
        link = link_to(server, window=window)
        link.pull(*flat.where, out, versions=flat.versions)
        assert link.waited_s > 0.02 * (9 // window - 1)
        link.close()
    for i, chunk in enumerate(flat.chunks):
        np.testing.assert_array_equal(flat.part(out, i), server.chunks[int(chunk)])
    assert len(server.frames) == 9


@pytest.mark.parametrize("encoding", ["float32", "bfloat16"])
def test_full_buffers_in_both_directions_do_not_lock_up(encoding: str) -> None:
    """The server answers each request before it reads the next, as much as the answer is."""
    flat = Flat(*[200_000] * 12)
    weights, grad, out = flat.random(1), flat.random(2), np.zeros(flat.floats, np.float32)
    sent = np.zeros(flat.floats, np.float32)
    server = FakeServer(flat.parts(weights))
    for end in (server.ours, server.theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    with server:
        link = link_to(server, timeout_s=20.0)
        link.push_pull(
            *flat.where, grad, out, rate=1.0, steps=1, sequence=1, versions=flat.versions,
            encoding=encoding, sent=sent,
        )  # fmt: skip
        link.close()
    np.testing.assert_array_equal(out, weights - sent)


def test_a_socket_with_a_python_timeout_will_do(flat: Flat) -> None:
    server = FakeServer(flat.parts(flat.random(1)))
    server.theirs.settimeout(0.001)
    with server:
        link = link_to(server)
        link.pull(*flat.where, flat.random(2), versions=flat.versions)
        link.close()


def test_a_payload_in_own_memory_goes_by_reference(flat: Flat) -> None:
    own = np.zeros(4 * flat.floats + 128, np.uint8)
    grad = own[64 : 64 + 4 * flat.floats].view(np.float32)
    with FakeServer(flat.parts(flat.random(1))) as server:
        link = link_to(server, own=own)
        settings = {"rate": 1.0, "steps": 1, "versions": flat.versions}
        link.push(*flat.where, grad, sequence=1, **settings)
        link.push(*flat.where, grad.copy(), sequence=5, **settings)
        link.close()
    by_reference, copied = server.frames[:4], server.frames[4:]
    assert [f.place for f in by_reference] == (64 + 4 * flat.starts).tolist()
    assert [f.payload_bytes for f in by_reference] == (4 * flat.counts).tolist()
    assert all(f.flags == BY_REFERENCE for f in by_reference)
    assert all(f.flags == 0 for f in copied)
    assert link.pushed_bytes == 2 * 4 * flat.counts.sum()


def test_a_payload_partly_in_own_memory_travels() -> None:
    memory, flat = np.zeros(512, np.uint8), Flat(64)
    with FakeServer(flat.parts(flat.random(1))) as server:
        link = link_to(server, own=memory[128:256])
        for first in (0, 64, 192, 256):
            grad = memory[first : first + 256].view(np.float32)
            settings = {"rate": 1.0, "steps": 1, "sequence": first + 1}
            link.push(*flat.where, grad, versions=flat.versions, **settings)
        link.close()
    assert [f.flags for f in server.frames] == [0] * 4


def test_on_one_machine_a_pull_is_a_copy(flat: Flat) -> None:
    memory = np.zeros(8 * 4 + 4 * flat.floats, np.uint8)
    memory[:32].view(np.uint64)[:] = [5, 6, 7, 8]
    weights = memory[32:].view(np.float32)
    weights[:] = flat.random(1)
    out = np.zeros(flat.floats, np.float32)
    with FakeServer(flat.parts(weights)) as server:
        link = link_to(server, values=memory)
        link.places(flat.chunks, 32 + 4 * flat.starts, np.arange(0, 32, 8))
        link.pull(*flat.where, out, versions=flat.versions)
        assert flat.versions.tolist() == [5, 6, 7, 8]
        assert server.frames == []
        out[:] = 0
        link.push_pull(
            *flat.where, flat.random(3), out, rate=1.0, steps=1, sequence=1,
            versions=flat.versions,
        )  # fmt: skip
        link.close()
    assert all(f.flags == 0 for f in server.frames)
    assert flat.versions.tolist() == [5, 6, 7, 8]
    np.testing.assert_array_equal(out, np.where(flat.inside(), weights, 0))
    assert link.pulled_bytes == 2 * 4 * flat.counts.sum()


class Held:
    """The memory of a server that holds one chunk of 8 floats, all ones, under a lease."""

    def __init__(self, lease: int) -> None:
        self.memory = np.zeros(64 + 32, np.uint8)
        self.memory[64:].view(np.float32)[:] = 1.0
        self.lease = self.memory[8:12].view(np.uint32)
        self.lease[:] = lease
        self.out, self.outcomes = np.zeros(16, np.float32), np.zeros(1, np.int8)

    def link_to(self, server: FakeServer) -> _native.Link:
        link = link_to(server, values=self.memory)
        link.places(np.array([10]), np.array([64]), np.array([0]))
        return link

    def told(self, lease: int) -> dict[str, Any]:
        leases, versions = np.array([lease]), np.zeros(1, np.int64)
        return {"leases": leases, "outcomes": self.outcomes, "versions": versions}


@pytest.mark.parametrize(("lease", "is_held"), [(6, True), (0, True), (5, False), (7, False)])
def test_a_copy_is_taken_from_the_primary_alone(lease: int, is_held: bool) -> None:
    flat, held = Flat(8), Held(6)
    with FakeServer(flat.parts(flat.random(1))) as server:
        link = held.link_to(server)
        if is_held:
            link.pull(*flat.where, held.out, **held.told(lease))
        else:
            with pytest.raises(_native.Refused, match=f"not held under lease {lease}") as caught:
                link.pull(*flat.where, held.out, **held.told(lease))
            assert (caught.value.code, caught.value.chunk) == (4, 10)
        link.close()
    assert held.outcomes.tolist() == [1 if is_held else -4]
    assert held.out[0] == float(is_held)


def test_an_update_whose_chunk_moves_before_its_values_are_copied_counts_as_refused() -> None:
    flat, held = Flat(8), Held(6)
    server = FakeServer(flat.parts(flat.random(1)))

    def serve(sock: socket.socket) -> None:
        for frame in server.requests(sock):
            held.lease[:] = 0
            sock.sendall(server.reply_to(frame).pack())

    server.serve = serve
    with server:
        link = held.link_to(server)
        with pytest.raises(_native.Refused, match="not held under lease 6"):
            link.push_pull(
                *flat.where, flat.random(2), held.out, rate=1.0, steps=1, sequence=1,
                **held.told(6),
            )  # fmt: skip
        link.close()
    assert held.outcomes.tolist() == [-4]


def test_nothing_is_copied_from_a_server_that_is_gone() -> None:
    flat, held = Flat(8), Held(6)

    def pull_until(end: float) -> None:
        while time.monotonic() < end:
            link.pull(*flat.where, held.out, **held.told(6))

    with FakeServer(flat.parts(flat.random(1))) as server:
        link = held.link_to(server)
        link.pull(*flat.where, held.out, **held.told(6))
        server.ours.shutdown(socket.SHUT_RDWR)
        with pytest.raises(ConnectionError, match="closed by the server"):
            pull_until(time.monotonic() + 30)
        link.close()


def test_places_must_lie_in_the_memory(flat: Flat) -> None:
    memory = np.zeros(1024, np.uint8)
    one, chunk = np.zeros(1, np.int64), flat.chunks[:1]
    with FakeServer({}) as server:
        link = link_to(server, values=memory)
        for weights, version in [(1028, 0), (2, 0), (0, 1020), (0, 4), (-4, 0), (0, -8)]:
            with pytest.raises(ValueError, match="of 1024 bytes"):
                link.places(chunk, np.array([weights]), np.array([version]))
        with pytest.raises(ValueError, match="Nothing says where chunk 10 lies"):
            link.pull(chunk, one, one + 8, flat.random(1), versions=one)
        link.places(chunk, np.array([1000]), np.array([8]))
        with pytest.raises(ValueError, match="reaches beyond"):
            link.pull(chunk, one, one + 7, flat.random(1), versions=one)
        link.pull(chunk, one, one + 6, flat.random(1), versions=one)
        link.close()


def test_arguments_are_checked(flat: Flat) -> None:
    with FakeServer({}) as server:
        link = link_to(server)
        grad = flat.random(1)
        settings = {"rate": 1.0, "steps": 1, "sequence": 1, "versions": flat.versions}
        with pytest.raises(ValueError, match="4 chunks, 4 ranges and 3 versions"):
            link.push(*flat.where, grad, **{**settings, "versions": flat.versions[:3]})
        with pytest.raises(ValueError, match="the array has"):
            link.push(*flat.where, grad[:-20], **settings)
        with pytest.raises(ValueError, match="share to keep is 0"):
            link.push(*flat.where, grad, encoding="topk", keep=0.0, **settings)
        with pytest.raises(ValueError, match="not topk"):
            link.pull(*flat.where, grad, versions=flat.versions, encoding="topk")
        with pytest.raises(ValueError, match="number -1"):
            link.pull(-flat.chunks // 10, *flat.where[1:], grad, versions=flat.versions)
        with pytest.raises(TypeError):
            link.pull(flat.chunks * 1.0, *flat.where[1:], grad, versions=flat.versions)
        with pytest.raises(ValueError, match="as many samples"):
            link.push_factors(
                1, grad[:4].reshape(2, 2), grad[:3].reshape(3, 1), rate=1.0, steps=1, sequence=1,
                seen=0,
            )  # fmt: skip
        link.close()
        assert server.frames == []


def test_settings_are_checked() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises(ValueError, match="window is 0"):
            _native.Link(ours.fileno(), client=1, window=0)
        with pytest.raises(ValueError, match="timeout is"):
            _native.Link(ours.fileno(), client=1, timeout_s=0.0)
        with pytest.raises(ValueError, match="not a connected stream socket"):
            _native.Link(0, client=1)
        theirs.sendall(b"x")
        assert ours.recv(1) == b"x"  # the descriptor was left alone
