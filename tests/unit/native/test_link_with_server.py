"""Links and the chunk server together: every form of update, over a stream and by reference."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from manyhands import _native, kernels

Floats = npt.NDArray[np.float32]

CLIENT, ROWS, WIDTH = 5, 12, 40
CHUNKS = np.arange(3)
COUNTS = np.full(3, ROWS * WIDTH)
STARTS = CHUNKS * ROWS * WIDTH
FLOATS = 3 * ROWS * WIDTH


def random_floats(seed: int, size: int = FLOATS) -> Floats:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


class Serving:
    """Three chunks, one parameter's rows, on one lane; sgd with momentum 0.5."""

    def __init__(self) -> None:
        self.server = _native.ChunkServer(lanes=1, pin=False)
        rule = _native.Rule("sgd", momentum=0.5)
        for chunk in range(3):
            self.server.add_chunk(
                chunk, lane=0, parameter=0, first_row=chunk * ROWS, rows=ROWS, row_floats=WIDTH,
                rule=rule, state_starts=[0.0],
            )  # fmt: skip
        self.server.start()
        self.links: list[_native.Link] = []

    def link(self, *, shared: tuple[int, int] = (-1, 0), admin: bool = False, **kw: Any) -> Any:
        ours, theirs = socket.socketpair()
        fd, size = shared
        self.server.adopt(
            theirs.detach(), lane=0, client=CLIENT, admin=admin,
            shared_fd=os.dup(fd) if fd >= 0 else -1, shared_bytes=size,
        )  # fmt: skip
        link = _native.Link(ours.detach(), client=CLIENT, timeout_s=20.0, **kw)
        self.links.append(link)
        return link

    def close(self) -> None:
        for link in self.links:
            link.close()
        self.server.stop()


@pytest.fixture
def serving() -> Iterator[Serving]:
    serving = Serving()
    yield serving
    serving.close()


@pytest.fixture
def weights(serving: Serving) -> Floats:
    """What the server starts from."""
    weights = random_floats(0)
    admin = serving.link(admin=True)
    for chunk in range(3):
        admin.set(chunk, 0, weights[STARTS[chunk] : STARTS[chunk] + COUNTS[chunk]], sequence=0)
    return weights


def update(sequence: int, versions: npt.NDArray[np.int64]) -> dict[str, Any]:
    return {"rate": 0.1, "steps": 1, "sequence": sequence, "versions": versions}


def test_push_and_pull(serving: Serving, weights: Floats) -> None:
    link, versions, out = serving.link(), np.zeros(3, np.int64), np.zeros(FLOATS, np.float32)
    first, second = random_floats(1), random_floats(2)
    link.push(CHUNKS, STARTS, COUNTS, first, **update(1, versions))
    assert versions.tolist() == [2, 2, 2]  # the weights were set before
    link.push_pull(CHUNKS, STARTS, COUNTS, second, out, **update(4, versions))
    assert versions.tolist() == [3, 3, 3]
    expected = weights - 0.1 * first - 0.1 * (0.5 * first + second)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    again = np.zeros_like(out)
    link.pull(CHUNKS, STARTS, COUNTS, again, versions=versions)
    np.testing.assert_array_equal(again, out)
    momentum = np.zeros(COUNTS[0], np.float32)
    assert serving.link(admin=True).get(0, 1, momentum) == (3, 2)
    np.testing.assert_allclose(momentum, (0.5 * first + second)[: COUNTS[0]], atol=1e-5)


@pytest.mark.parametrize("encoding", ["bfloat16", "int8", "topk"])
def test_the_server_applies_what_was_sent(serving: Serving, weights: Floats, encoding: str) -> None:
    link, versions, out = serving.link(), np.zeros(3, np.int64), np.zeros(FLOATS, np.float32)
    sent = np.zeros(FLOATS, np.float32)
    link.push_pull(
        CHUNKS, STARTS, COUNTS, random_floats(1), out, encoding=encoding, sent=sent, keep=0.2,
        **update(1, versions),
    )  # fmt: skip
    assert sent.any()
    np.testing.assert_allclose(out, weights - 0.1 * sent, atol=1e-6)


@pytest.mark.parametrize("encoding", ["bfloat16", "int8"])
def test_values_come_back_encoded(serving: Serving, weights: Floats, encoding: str) -> None:
    out, link = np.zeros(FLOATS, np.float32), serving.link()
    link.pull(CHUNKS, STARTS, COUNTS, out, versions=np.zeros(3, np.int64), encoding=encoding)
    np.testing.assert_allclose(out, weights, atol=np.abs(weights).max() / 127)
    assert link.pulled_bytes < 2.1 * FLOATS


def test_factors(serving: Serving, weights: Floats) -> None:
    link, out = serving.link(), np.zeros(FLOATS, np.float32)
    a, d = random_floats(1, 4 * WIDTH).reshape(4, WIDTH), random_floats(2, 144).reshape(4, 36)
    assert link.push_factors(0, a, d, rate=0.1, steps=1, sequence=1, seen=0) == 2
    link.pull(CHUNKS, STARTS, COUNTS, out, versions=np.zeros(3, np.int64))
    np.testing.assert_allclose(out, weights - 0.1 * (d.T @ a).reshape(-1), atol=1e-4)


def test_rows(serving: Serving, weights: Floats) -> None:
    link, out = serving.link(), np.zeros(FLOATS, np.float32)
    rows, values = np.array([3, 7]), random_floats(1, 2 * WIDTH).reshape(2, WIDTH)
    versions = np.zeros(1, np.int64)
    link.push_rows(
        np.array([1]), np.array([0]), np.array([2]), rows, values.reshape(-1),
        value_starts=np.array([0]), widths=np.array([WIDTH]), **update(1, versions),
    )  # fmt: skip
    assert versions.tolist() == [2]
    link.pull(CHUNKS, STARTS, COUNTS, out, versions=np.zeros(3, np.int64))
    expected = weights.reshape(3 * ROWS, WIDTH).copy()
    expected[ROWS + rows] -= 0.1 * values
    np.testing.assert_allclose(out, expected.reshape(-1), atol=1e-6)


def test_a_replay_is_not_applied_again(serving: Serving, weights: Floats) -> None:
    grad, out = random_floats(1), np.zeros(FLOATS, np.float32)
    for _ in range(2):  # a new link each time, as after a lost connection
        link = serving.link()
        link.push_pull(CHUNKS, STARTS, COUNTS, grad, out, **update(1, np.zeros(3, np.int64)))
    np.testing.assert_allclose(out, weights - 0.1 * grad, atol=1e-6)
    assert serving.server.stats()["replays"] == 3


def test_refusals(serving: Serving, weights: Floats) -> None:
    link, versions, grad = serving.link(), np.zeros(3, np.int64), random_floats(1)
    grad[STARTS[1]] = np.nan
    with pytest.raises(kernels.Refused, match="finite") as caught:
        link.push(CHUNKS, STARTS, COUNTS, grad, **update(1, versions))
    assert (caught.value.code, caught.value.chunk) == (3, 1)
    assert versions.tolist() == [2, 0, 2]
    with pytest.raises(kernels.Refused, match="administrator"):
        link.set(0, 0, grad[: COUNTS[0]], sequence=2)
    with pytest.raises(kernels.Refused, match="does not hold chunk 9") as caught:
        link.pull(np.array([9]), STARTS[:1], COUNTS[:1], grad, versions=versions[:1])
    assert caught.value.code == 1
    leases, outcomes = np.array([0, 3, 0]), np.zeros(3, np.int8)
    with pytest.raises(kernels.Refused, match="lease 3"):
        link.pull(CHUNKS, STARTS, COUNTS, grad, versions=versions, leases=leases, outcomes=outcomes)
    assert outcomes.tolist() == [1, -4, 1]


def sealed_memory(size: int) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


def test_on_one_machine(serving: Serving, weights: Floats) -> None:
    fd, size = sealed_memory(1 << 16), 1 << 16
    own = np.frombuffer(mmap.mmap(fd, size), np.uint8)
    server_memory = mmap.mmap(
        serving.server.memory_fd, serving.server.memory_bytes, prot=mmap.PROT_READ
    )
    values = np.frombuffer(server_memory, np.uint8)
    link = serving.link(shared=(fd, size), own=own, values=values)
    os.close(fd)
    places = np.array([serving.server.place_of(int(c)) for c in CHUNKS], np.int64)
    link.places(CHUNKS, places[:, 0].copy(), places[:, 1].copy())
    out, versions = np.zeros(FLOATS, np.float32), np.zeros(3, np.int64)
    link.pull(CHUNKS, STARTS, COUNTS, out, versions=versions)
    np.testing.assert_array_equal(out, weights)
    frames = serving.server.stats()["frames"]
    grad = own[4096 : 4096 + 4 * FLOATS].view(np.float32)
    grad[:] = random_floats(1)
    link.push_pull(CHUNKS, STARTS, COUNTS, grad, out, **update(1, versions))
    np.testing.assert_allclose(out, weights - 0.1 * grad, atol=1e-6)
    assert versions.tolist() == [2, 2, 2]
    assert serving.server.stats()["frames"] - frames == 3


def test_a_server_that_stops_ends_the_call(serving: Serving, weights: Floats) -> None:
    link = serving.link()
    grad, errors = random_floats(1), []

    def push_for_ever() -> None:
        versions, first = np.zeros(3, np.int64), 1
        try:
            while True:
                link.push(CHUNKS, STARTS, COUNTS, grad, **update(first, versions))
                first += 3
        except ConnectionError as error:
            errors.append(error)

    thread = threading.Thread(target=push_for_ever)
    thread.start()
    while serving.server.stats()["updates"] < 9:
        assert thread.is_alive()
    serving.server.stop()
    thread.join(15)
    assert errors


def test_many_large_chunks_in_both_directions() -> None:
    server, n = _native.ChunkServer(lanes=1, pin=False), 250_000
    for chunk in range(20):
        server.add_chunk(
            chunk, lane=0, parameter=chunk, first_row=0, rows=1, row_floats=n,
            rule=_native.Rule("sgd"), state_starts=[],
        )  # fmt: skip
    server.start()
    ours, theirs = socket.socketpair()
    server.adopt(theirs.detach(), lane=0, client=1)
    link = _native.Link(ours.detach(), client=1, timeout_s=20.0)
    chunks, counts, versions = np.arange(20), np.full(20, n), np.zeros(20, np.int64)
    grad, out = random_floats(1, 20 * n), np.zeros(20 * n, np.float32)
    for turn in range(3):
        link.push_pull(
            chunks, chunks * n, counts, grad, out, rate=1.0, steps=1, sequence=1 + 20 * turn,
            versions=versions,
        )  # fmt: skip
    link.close()
    server.stop()
    np.testing.assert_allclose(out, -3 * grad, rtol=1e-5)
    assert versions.tolist() == [3] * 20
