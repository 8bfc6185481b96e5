"""A client that says what it has of a chunk is sent the rows that changed since, or everything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from copies import Copies, copies
from raw_client import Encoding, Floats, Harness, Kind, RawClient, Reply, eventually, harness

from manyhands import _native
from manyhands.messages import Refusal

ROWS, WIDTH = 64, 8


def one_by_rows(h: Harness | Copies, **options: Any) -> None:
    h.add(0, ROWS, WIDTH, by_rows=True, **options)


class Reader:
    """Keeps its own copy of chunk 0 up to date by asking for changed rows alone."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.weights = np.full((ROWS, WIDTH), np.nan, np.float32)
        self.era = self.version = 0

    def ask(self, **fields: Any) -> Reply:
        return self.client.ask(Kind.PULL_ROWS, chunk=0, place=self.era, seen=self.version, **fields)

    def fetch(self, **fields: Any) -> list[int] | None:
        """The rows that came; None for all of them."""
        return self.take(self.ask(**fields))

    def take(self, reply: Reply) -> list[int] | None:
        self.era, self.version = reply.place, reply.seen
        if reply.kind is Kind.VALUES:
            self.weights[:] = decoded(reply, ROWS)
            return None
        assert reply.kind is Kind.ROW_VALUES, reply
        rows = np.frombuffer(reply.payload, np.uint32, reply.count)
        self.weights[rows] = decoded(reply, len(rows))
        return rows.tolist()


def decoded(reply: Reply, rows: int) -> Floats:
    out = np.zeros(rows * WIDTH, np.float32)
    numbers = 4 * rows if reply.kind is Kind.ROW_VALUES else 0
    _native.decode(reply.encoding.name.lower(), reply.payload[numbers:], rows * WIDTH, out)
    return out.reshape(rows, WIDTH)


def push_rows(client: RawClient, rows: list[int], sequence: int, **fields: Any) -> Reply:
    values = np.random.default_rng(sequence).standard_normal((len(rows), WIDTH)).astype(np.float32)
    payload = np.array(rows, np.uint32).tobytes() + values.tobytes()
    return client.ask(Kind.ROWS, payload, chunk=0, count=len(rows), sequence=sequence, **fields)


def test_only_rows_that_changed_come_again() -> None:
    with harness() as h:
        one_by_rows(h)
        h.server.start()
        writer, reader = h.connect(1), Reader(h.connect(2))
        push_rows(writer, [5, 60], 1)
        assert reader.fetch() is None  # it had nothing
        assert reader.fetch() == []
        push_rows(writer, [7, 3], 2)
        push_rows(writer, [3, 9], 3)
        assert reader.fetch() == [3, 7, 9]
        assert reader.version == 3
        np.testing.assert_array_equal(reader.weights.ravel(), writer.pull(0))
        before = h.server.stats()["pulled_bytes"]
        push_rows(writer, [1], 4)
        assert reader.fetch() == [1]
        assert h.server.stats()["pulled_bytes"] - before == 4 + 4 * WIDTH


def test_a_replayed_push_changes_no_row() -> None:
    with harness() as h:
        one_by_rows(h)
        h.server.start()
        writer, reader = h.connect(1), Reader(h.connect(2))
        push_rows(writer, [5], 1)
        reader.fetch()
        assert push_rows(writer, [6], 1).kind is Kind.ACK
        assert reader.fetch() == []


def test_many_changed_rows_come_as_the_whole_chunk() -> None:
    with harness() as h:
        one_by_rows(h)
        h.server.start()
        writer, reader = h.connect(1), Reader(h.connect(2))
        reader.fetch()
        era = reader.era
        push_rows(writer, list(range(ROWS - 1)), 1)
        assert reader.fetch() is None
        assert reader.era == era
        assert reader.fetch() == []
        np.testing.assert_array_equal(reader.weights.ravel(), writer.pull(0))


@pytest.mark.parametrize("how", ["set", "delta", "pieces"])
def test_what_changes_everything_ends_the_era(how: str) -> None:
    with harness(refuse_nonfinite=how != "pieces") as h:
        rows = 16384 if how == "pieces" else ROWS  # a delta of 512 KB comes in pieces
        h.add(0, rows, WIDTH, by_rows=True)
        h.server.start()
        writer, reader = h.connect(1, admin=True), Reader(h.connect(2))
        reader.weights = np.zeros((rows, WIDTH), np.float32)
        first = reader.ask()
        reader.era, reader.version = first.place, first.seen
        whole = np.ones(rows * WIDTH, np.float32)
        if how == "set":
            writer.set(0, whole)
        else:
            writer.push(0, whole)
        reply = reader.ask()
        assert reply.kind is Kind.VALUES
        assert reply.place not in (0, first.place)
        np.testing.assert_array_equal(reply.floats, whole if how == "set" else -whole)


def test_a_delta_that_is_never_finished_is_seen() -> None:
    with harness(refuse_nonfinite=False) as h:
        h.add(0, 65536, WIDTH, by_rows=True)
        h.server.start()
        writer, reader = h.connect(1), Reader(h.connect(2))
        first = reader.ask()
        reader.era, reader.version = first.place, first.seen
        payload = np.ones(65536 * WIDTH, np.float32).tobytes()
        writer.send(Kind.DELTA, payload[: len(payload) // 2], chunk=0, sequence=1,
                    payload_bytes=len(payload))  # fmt: skip
        writer.close()
        eventually(lambda: reader.ask().kind is Kind.VALUES)
        eventually(lambda: bool(reader.ask().floats[: 65536 * WIDTH // 4].all()))


def test_chunks_whose_updates_name_no_rows_come_whole() -> None:
    with harness() as h:
        h.add(0, ROWS, WIDTH)
        h.server.start()
        reader = Reader(h.connect())
        assert reader.fetch() is None
        assert reader.era == 0
        push_rows(reader.client, [3], 1)
        assert reader.fetch() is None


@pytest.mark.parametrize("encoding", [Encoding.BFLOAT16, Encoding.INT8])
def test_rows_come_in_the_encoding_that_is_asked_for(encoding: Encoding) -> None:
    with harness() as h:
        one_by_rows(h)
        h.server.start()
        writer, reader = h.connect(1), Reader(h.connect(2))
        reader.fetch(encoding=encoding)
        push_rows(writer, [4, 5, 50], 1)
        assert reader.fetch(encoding=encoding) == [4, 5, 50]
        np.testing.assert_allclose(reader.weights.ravel(), writer.pull(0), atol=0.05)


def test_what_is_no_question_is_refused() -> None:
    with harness() as h:
        one_by_rows(h)
        h.server.start()
        client = h.connect()
        reply = client.ask(Kind.PULL_ROWS, chunk=0, encoding=Encoding.TOP_K)
        assert (reply.kind, reply.count) == (Kind.REFUSED, Refusal.WRONG_SIZE)
        reply = client.ask(Kind.PULL_ROWS, b"1234", chunk=0)
        assert (reply.kind, reply.count) == (Kind.REFUSED, Refusal.WRONG_SIZE)
        reply = client.ask(Kind.PULL_ROWS, chunk=9)
        assert (reply.kind, reply.count) == (Kind.REFUSED, Refusal.UNKNOWN_CHUNK)
        assert client.pull(0) is not None


def test_many_answers_to_a_client_that_reads_late() -> None:
    """More rows than are gathered at once, and a socket that takes an answer in parts."""
    with harness() as h:
        rows, width, chunks = 512, 256, 40
        for chunk in range(chunks):
            h.add(chunk, rows, width, by_rows=True)
        h.server.start()
        writer, reader = h.connect(1), h.connect(2)
        eras = [reader.ask(Kind.PULL_ROWS, chunk=chunk).place for chunk in range(chunks)]
        touched = np.arange(0, rows, 2, dtype=np.uint32)
        values = np.random.default_rng(0).standard_normal((len(touched), width)).astype(np.float32)
        for chunk in range(chunks):
            payload = touched.tobytes() + (values * (chunk + 1)).astype(np.float32).tobytes()
            writer.ask(Kind.ROWS, payload, chunk=chunk, count=len(touched), sequence=1)
        for chunk, era in enumerate(eras):
            reader.send(Kind.PULL_ROWS, chunk=chunk, place=era)
        for chunk in range(chunks):
            reply = reader.receive()
            assert (reply.kind, reply.chunk, reply.count) == (Kind.ROW_VALUES, chunk, len(touched))
            got = np.frombuffer(reply.payload, np.float32, offset=4 * len(touched))
            expected = -(values * (chunk + 1)).astype(np.float32)
            np.testing.assert_array_equal(got, expected.ravel())


# --- copies


def replicated(c: Copies) -> Copies:
    one_by_rows(c)
    c.serve()
    return c


def test_a_promoted_mirror_sends_everything_once() -> None:
    with copies(2) as c:
        replicated(c)
        writer, reader = c.connect(0, 1), Reader(c.connect(0, 2))
        push_rows(writer, [3], 1)
        reader.fetch()
        era = reader.era
        c.hold(1, lease=2, tell=[1])
        writer, reader.client = c.connect(1, 1), c.connect(1, 2)
        assert reader.fetch() is None
        assert reader.era not in (0, era)
        push_rows(writer, [9], 2)
        assert reader.fetch() == [9]
        np.testing.assert_array_equal(reader.weights.ravel(), writer.pull(0))


def test_what_was_read_and_never_acknowledged_goes_away() -> None:
    """The old primary told of an update that its mirror never had; the next one has another."""
    with copies(2) as c:
        replicated(c)
        writer, reader = c.connect(0, 1), Reader(c.connect(0, 2))
        push_rows(writer, [3], 1)
        c.servers[0].mute_peer(1, True)
        payload = np.array([5], np.uint32).tobytes() + np.ones(WIDTH, np.float32).tobytes()
        writer.send(Kind.ROWS, payload, chunk=0, count=1, sequence=2)
        eventually(lambda: reader.fetch() is not None and reader.version == 2)
        assert reader.weights[5].any()
        c.hold(1, lease=2, tell=[1])
        writer, reader.client = c.connect(1, 3), c.connect(1, 2)
        push_rows(writer, [6], 1)
        push_rows(writer, [7], 2)  # the new primary is further than the old one was
        reader.fetch()
        assert not reader.weights[5].any()
        np.testing.assert_array_equal(reader.weights.ravel(), writer.pull(0))


def test_a_primary_that_was_brought_back_and_serves_again_tells_all() -> None:
    """A row that it told of in its first time was taken back from it meanwhile."""
    with copies(2) as c:
        replicated(c)
        writer, reader = c.connect(0, 1), Reader(c.connect(0, 2))
        push_rows(writer, [3], 1)
        c.servers[0].mute_peer(1, True)
        payload = np.array([5], np.uint32).tobytes() + np.ones(WIDTH, np.float32).tobytes()
        writer.send(Kind.ROWS, payload, chunk=0, count=1, sequence=2)
        reader.fetch()
        eventually(lambda: reader.fetch() is not None and reader.version == 2)
        assert reader.weights[5].any()
        c.hold(1, [0], lease=2)
        c.servers[0].mute_peer(1, False)
        c.join(1, 0)
        other = c.connect(1, 3)
        for sequence in (1, 2, 3):  # past the version that the reader has
            push_rows(other, [6 + sequence], sequence)
        c.hold(0, lease=3, tell=[0])
        reader.client = c.connect(0, 2)
        reader.fetch()
        assert not reader.weights[5].any()
        np.testing.assert_array_equal(reader.weights.ravel(), reader.client.pull(0))


def test_a_lease_that_is_renewed_with_the_same_number_ends_no_era() -> None:
    with copies(2) as c:
        replicated(c)
        writer, reader = c.connect(0, 1), Reader(c.connect(0, 2))
        reader.fetch()
        c.hold(0, mirrors=[1])  # another placement, this bucket as before
        push_rows(writer, [2], 1)
        assert reader.fetch() == [2]


def test_a_copy_that_takes_a_snapshot_begins_an_era() -> None:
    with copies(2) as c:
        one_by_rows(c)
        c.start()
        c.hold(0, tell=[0])
        writer = c.connect(0, 1)
        push_rows(writer, [3], 1)
        snapshot = c.servers[0].collect(0)
        assert snapshot is not None
        c.servers[1].restore(0, snapshot, 5)
        c.hold(1, lease=6, tell=[1])
        reader = Reader(c.connect(1, 2))
        assert reader.fetch() is None
        assert reader.weights[3].any()
