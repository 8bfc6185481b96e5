"""Links that push rows of many chunks in one pass and pull the rows that changed, both ways."""

from __future__ import annotations

import mmap
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from fake_server import ROW_VALUES, ROWS, FakeServer, Frame

from manyhands import _native

Floats = npt.NDArray[np.float32]
CLIENT = 5
# Two chunks of a matrix with 20 rows of 24 floats each, and one of a vector of 100 floats.
CHUNKS = np.arange(3)
CHUNK_ROWS = np.array([20, 20, 100])
WIDTHS = np.array([24, 24, 1])
COUNTS = CHUNK_ROWS * WIDTHS
STARTS = np.cumsum(COUNTS) - COUNTS
ROW_STARTS = np.cumsum(CHUNK_ROWS) - CHUNK_ROWS
FLOATS = int(COUNTS.sum())


class Serving:
    def __init__(self) -> None:
        self.server = _native.ChunkServer(lanes=1, pin=False)
        for chunk, (rows, width) in enumerate(zip(CHUNK_ROWS, WIDTHS, strict=True)):
            self.server.add_chunk(
                chunk, lane=0, parameter=chunk // 2, first_row=20 * (chunk % 2), rows=int(rows),
                row_floats=int(width), rule=_native.Rule("sgd"), state_starts=[], by_rows=True,
            )  # fmt: skip
        self.server.start()
        self.links: list[_native.Link] = []
        self.sequence = 0

    def link(self, *, shared: bool = False, admin: bool = False) -> _native.Link:
        ours, theirs = socket.socketpair()
        self.server.adopt(theirs.detach(), lane=0, client=CLIENT, admin=admin)
        values = None
        if shared:
            memory = mmap.mmap(self.server.memory_fd, self.server.memory_bytes, prot=mmap.PROT_READ)
            values = np.frombuffer(memory, np.uint8)
        link = _native.Link(ours.detach(), client=CLIENT, timeout_s=20.0, values=values)
        if shared:
            places = np.array([self.server.place_of(int(c)) for c in CHUNKS], np.int64)
            link.places(CHUNKS, places[:, 0].copy(), places[:, 1].copy())
        self.links.append(link)
        return link

    def push(self, link: _native.Link, rows: dict[int, list[int]], value: float = 1.0) -> Any:
        """Move these rows of each chunk by -value."""
        self.sequence += 1
        chunks = np.array(list(rows))
        counts = np.array([len(r) for r in rows.values()])
        sizes = counts * WIDTHS[chunks]
        versions = np.zeros(len(chunks), np.int64)
        link.push_rows(
            chunks, np.cumsum(counts) - counts, counts, np.concatenate(list(rows.values())),
            np.full(sizes.sum(), value, np.float32), value_starts=np.cumsum(sizes) - sizes,
            widths=WIDTHS[chunks], rate=1.0, steps=1, sequence=self.sequence, versions=versions,
        )  # fmt: skip
        return versions.tolist()

    def close(self) -> None:
        for link in self.links:
            link.close()
        self.server.stop()


class Held:
    def __init__(self) -> None:
        self.out = np.full(FLOATS, np.nan, np.float32)
        self.versions, self.eras = np.zeros(3, np.int64), np.zeros(3, np.int64)

    def fetch(self, link: _native.Link, **options: Any) -> dict[int, list[int]]:
        changed = np.zeros(int(CHUNK_ROWS.sum()), np.uint8)
        link.pull_rows(
            CHUNKS, STARTS, COUNTS, self.out, widths=WIDTHS, row_starts=ROW_STARTS,
            changed=changed, eras=self.eras, versions=self.versions, **options,
        )  # fmt: skip
        found = {}
        for chunk, (start, rows) in enumerate(zip(ROW_STARTS, CHUNK_ROWS, strict=True)):
            found[chunk] = np.flatnonzero(changed[start : start + rows]).tolist()
        return found


@pytest.fixture
def serving() -> Iterator[Serving]:
    serving = Serving()
    yield serving
    serving.close()


def everything(link: _native.Link) -> Floats:
    out = np.zeros(FLOATS, np.float32)
    link.pull(CHUNKS, STARTS, COUNTS, out, versions=np.zeros(3, np.int64))
    return out


@pytest.mark.parametrize("shared", [False, True])
def test_rows_of_many_chunks_there_and_back(serving: Serving, shared: bool) -> None:
    link, held = serving.link(shared=shared), Held()
    assert serving.push(link, {0: [1, 4], 1: [0], 2: [7, 99]}) == [1, 1, 1]
    assert {c: len(r) for c, r in held.fetch(link).items()} == {0: 20, 1: 20, 2: 100}
    assert held.versions.tolist() == [1, 1, 1]
    assert held.fetch(link) == {0: [], 1: [], 2: []}
    assert serving.push(link, {0: [4, 5], 2: [3]}) == [2, 2]
    before = link.pulled_bytes
    assert held.fetch(link) == {0: [4, 5], 1: [], 2: [3]}
    expected = np.zeros(FLOATS, np.float32)
    expected[24:48] = expected[120:144] = expected[480:504] = -1
    expected[96:120] = -2
    expected[[960 + 3, 960 + 7, 960 + 99]] = -1
    np.testing.assert_array_equal(held.out, expected)
    np.testing.assert_array_equal(held.out, everything(link))
    numbers = 0 if shared else 4 * 3
    assert link.pulled_bytes - before - 4 * FLOATS == numbers + 4 * (2 * 24 + 1)


def test_a_call_is_one_pass(serving: Serving) -> None:
    """All frames of a window are on their way before an answer is waited for."""
    link = serving.link()
    frames = serving.server.stats()["frames"]
    serving.push(link, {0: [1], 1: [2], 2: [3]})
    stats = serving.server.stats()
    assert stats["frames"] - frames == 3
    assert stats["updates"] == 3


@pytest.mark.parametrize("shared", [False, True])
def test_what_was_set_comes_whole(serving: Serving, shared: bool) -> None:
    link, held = serving.link(shared=shared), Held()
    held.fetch(link)
    serving.link(admin=True).set(1, 0, np.full(COUNTS[1], 3, np.float32), sequence=0)
    came = held.fetch(link)
    assert {c: len(r) for c, r in came.items()} == {0: 0, 1: 20, 2: 0}
    assert (held.out[STARTS[1] : STARTS[2]] == 3).all()


@pytest.mark.parametrize("shared", [False, True])
def test_nothing_is_missed_while_the_server_applies(serving: Serving, shared: bool) -> None:
    """Pushes and fetches at random, at the same time: what is fetched last is all there is."""
    writer, reader, held = serving.link(), serving.link(shared=shared), Held()
    random = np.random.default_rng(0)

    def write() -> None:
        for _ in range(400):
            rows = {
                int(c): np.unique(random.integers(0, CHUNK_ROWS[c], 3)).tolist() for c in CHUNKS
            }
            serving.push(writer, rows)

    thread = threading.Thread(target=write)
    thread.start()
    fetches = 0
    while thread.is_alive():
        held.fetch(reader)
        fetches += 1
    thread.join()
    held.fetch(reader)
    np.testing.assert_array_equal(held.out, everything(reader))
    assert held.versions.tolist() == [400, 400, 400]
    assert fetches > 1


@pytest.mark.parametrize("encoding", ["bfloat16", "int8"])
def test_rows_come_back_encoded(serving: Serving, encoding: str) -> None:
    link, held = serving.link(), Held()
    held.fetch(link, encoding=encoding)
    serving.push(link, {0: [2, 3], 2: [50]}, value=0.5)
    assert held.fetch(link, encoding=encoding) == {0: [2, 3], 1: [], 2: [50]}
    np.testing.assert_allclose(held.out, everything(link), atol=0.01)


def test_a_refusal_of_one_chunk_leaves_the_others(serving: Serving) -> None:
    link, outcomes, versions = serving.link(), np.zeros(3, np.int8), np.zeros(3, np.int64)
    with pytest.raises(_native.Refused, match="Row 20 was named"):
        link.push_rows(
            CHUNKS, np.arange(3), np.ones(3, np.int64), np.array([1, 20, 3]),
            np.ones(49, np.float32), value_starts=np.array([0, 24, 48]), widths=WIDTHS, rate=1.0,
            steps=1, sequence=1, versions=versions, outcomes=outcomes,
        )  # fmt: skip
    assert outcomes.tolist() == [1, -2, 1]
    assert versions.tolist() == [1, 0, 1]


def server_that_answers(frame: Frame) -> FakeServer:
    server = FakeServer({9: np.zeros(12, np.float32)})

    def serve(sock: socket.socket) -> None:
        for request in server.requests(sock):
            sock.sendall(replace(frame, sequence=request.sequence).pack())

    server.serve = serve
    return server


def answered_with(frame: Frame) -> str:
    """What a link says to a server that answers its question for 4 rows of 3 floats so."""
    with server_that_answers(frame) as server:
        link = _native.Link(server.fd(), client=1, timeout_s=20.0)
        with pytest.raises(ConnectionError) as caught:
            link.pull_rows(
                np.array([9]), np.array([0]), np.array([12]), np.zeros(12, np.float32),
                widths=np.array([3]), row_starts=np.array([0]), changed=np.zeros(4, np.uint8),
                eras=np.array([1]), versions=np.array([1]),
            )  # fmt: skip
        return str(caught.value)


def rows_of(*numbers: int, count: int | None = None) -> Frame:
    payload = np.array(numbers, np.uint32).tobytes() + b"\0" * 12 * len(numbers)
    return Frame(ROW_VALUES, 9, 0, count=len(numbers) if count is None else count, payload=payload)


def test_answers_that_make_no_sense_end_the_connection() -> None:
    assert "row that the chunk does not have" in answered_with(rows_of(0, 4))
    assert "does not fit" in answered_with(rows_of(0, 1, count=1))
    assert "does not fit" in answered_with(rows_of(0, 1, 2, 3, 0))
    assert "does not fit" in answered_with(rows_of(0, count=(1 << 32) - 1))


def test_rows_are_no_answer_to_a_plain_pull() -> None:
    with server_that_answers(rows_of(1)) as server:
        link = _native.Link(server.fd(), client=1, timeout_s=20.0)
        with pytest.raises(ConnectionError, match="does not fit"):
            link.pull(
                np.array([9]), np.array([0]), np.array([12]), np.zeros(12, np.float32),
                versions=np.zeros(1, np.int64),
            )  # fmt: skip


def test_what_is_sent() -> None:
    with FakeServer({3: np.zeros(40, np.float32), 4: np.zeros(7, np.float32)}) as server:
        link = _native.Link(server.fd(), client=1, timeout_s=20.0)
        values, versions = np.arange(11, dtype=np.float32), np.array([8, 9])
        link.push_rows(
            np.array([3, 4]), np.array([0, 2]), np.array([2, 1]), np.array([5, 6, 7]), values,
            value_starts=np.array([1, 9]), widths=np.array([4, 1]), rate=0.5, steps=3, sequence=17,
            versions=versions, leases=np.array([2, 0]),
        )  # fmt: skip
        first, second = server.frames
    assert (first.kind, first.chunk, first.count, first.sequence) == (ROWS, 3, 2, 17)
    assert (first.seen, first.rate, first.steps, first.lease) == (8, 0.5, 3, 2)
    assert first.payload == np.array([5, 6], np.uint32).tobytes() + values[1:9].tobytes()
    assert (second.chunk, second.count, second.seen, second.lease) == (4, 1, 9, 0)
    assert second.payload == np.array([7], np.uint32).tobytes() + values[9:10].tobytes()
    assert versions.tolist() == [1, 1]
    assert link.pushed_bytes == len(first.payload) + len(second.payload)


def test_wrong_arguments_are_refused() -> None:
    with FakeServer({}) as server:
        link = _native.Link(server.fd(), client=1, timeout_s=20.0)
        one = np.ones(1, np.int64)
        push: dict[str, Any] = {
            "chunks": one, "row_starts": 0 * one, "row_counts": one, "rows": one,
            "values": np.zeros(3, np.float32), "value_starts": 0 * one, "widths": 3 * one,
            "rate": 1.0, "steps": 1, "sequence": 1, "versions": one,
        }  # fmt: skip
        for wrong in (
            {"widths": 4 * one}, {"widths": 0 * one}, {"widths": -one}, {"value_starts": one},
            {"value_starts": -one}, {"row_counts": 2 * one}, {"widths": np.ones(2, np.int64)},
            {"widths": np.array([1 << 62])}, {"rows": -one},
        ):  # fmt: skip
            with pytest.raises(ValueError, match=r"expected|not inside|not topk|array has"):
                link.push_rows(**{**push, **wrong})
        pull: dict[str, Any] = {
            "chunks": one, "starts": 0 * one, "counts": 6 * one, "out": np.zeros(6, np.float32),
            "widths": 3 * one, "row_starts": 0 * one, "changed": np.zeros(2, np.uint8),
            "eras": 0 * one, "versions": one,
        }  # fmt: skip
        for wrong in (
            {"widths": 4 * one}, {"widths": 0 * one}, {"row_starts": one}, {"row_starts": -one},
            {"eras": np.zeros(2, np.int64)}, {"encoding": "topk"},
        ):  # fmt: skip
            with pytest.raises(ValueError, match=r"expected|not inside|not topk|array has"):
                link.pull_rows(**{**pull, **wrong})
        assert not server.frames


def test_places_beyond_the_servers_memory_are_refused() -> None:
    with FakeServer({}) as server:
        memory = np.zeros(64 + 64 + 31, np.uint8)  # versions of four rows need a byte more
        link = _native.Link(server.fd(), client=1, timeout_s=20.0, values=memory)
        link.places(np.array([9]), np.array([64]), np.array([0]))
        with pytest.raises(ValueError, match="versions of 4 rows of chunk 9"):
            link.pull_rows(
                np.array([9]), np.array([0]), np.array([12]), np.zeros(12, np.float32),
                widths=np.array([3]), row_starts=np.array([0]), changed=np.zeros(4, np.uint8),
                eras=np.array([0]), versions=np.array([0]),
            )  # fmt: skip
