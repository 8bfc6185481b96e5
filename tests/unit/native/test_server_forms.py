"""The chunk server's forms of update: factors, rows, encoded deltas, payloads by reference."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
import pytest
from raw_client import Encoding, Flag, Floats, Harness, Kind, harness, sealed_memory

from manyhands import _native
from manyhands.messages import Refusal

RULES: dict[str, dict[str, Any]] = {
    "sgd": {"name": "sgd"},
    "momentum": {"name": "sgd", "momentum": 0.9},
    "adagrad": {"name": "adagrad"},
    "adam": {"name": "adam", "eps": 1e-4},
}


def rule(name: str) -> _native.Rule:
    return _native.Rule(**RULES[name])


def floats(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def bfloat16(values: Floats) -> tuple[bytes, Floats]:
    payload = _native.encode("bfloat16", values)
    decoded = np.empty_like(values)
    _native.decode("bfloat16", payload, values.size, decoded.reshape(-1))
    return payload, decoded


def spans(h: Harness, name: str, inputs: int) -> None:
    """A matrix of 50 rows whose rows 0 to 29 and 30 to 49 lie on two lanes, in chunks."""
    for chunk, (first_row, rows, lane) in enumerate([(0, 11, 0), (11, 19, 0), (30, 20, 1)]):
        h.add(
            10 + chunk, rows, inputs, rule=rule(name), start=0.1, parameter=3, first_row=first_row,
            lane=lane,
        )  # fmt: skip
    h.server.start()


@pytest.mark.parametrize("samples", [1, 5, 40, 100])
@pytest.mark.parametrize("name", RULES)
def test_factors_equal_the_dense_gradient(name: str, samples: int, simd: str) -> None:
    inputs = 37
    with harness(lanes=2) as h, harness(lanes=2) as dense:
        for each in (h, dense):
            spans(each, name, inputs)
        by_factors, by_delta = h.connect(), dense.connect()
        for step in range(3):
            a, d = floats(samples, inputs, seed=step), floats(samples, 30, seed=50 + step)
            d[d < 0] = 0  # behind a ReLU
            payload = a.tobytes() + d.tobytes()
            reply = by_factors.ask(
                Kind.FACTORS, payload, chunk=10, count=samples, rate=0.1, sequence=step
            )
            assert (reply.kind, reply.seen) == (Kind.ACK, step + 1)
            gradient = (d.T @ a).astype(np.float32)
            by_delta.push(10, gradient[:11], rate=0.1)
            by_delta.push(11, gradient[11:], rate=0.1)
        for chunk in (10, 11):
            ours, theirs = by_factors.pull(chunk), by_delta.pull(chunk)
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
        assert h.server.stats()["updates"] == 3


def test_factors_as_bfloat16() -> None:
    with harness(lanes=2) as h:
        spans(h, "sgd", 8)
        client = h.connect()
        a_bytes, a = bfloat16(floats(3, 8))
        d_bytes, d = bfloat16(floats(3, 30, seed=1))
        client.ask(
            Kind.FACTORS, a_bytes + d_bytes, chunk=10, count=3, rate=1.0, sequence=1,
            encoding=Encoding.BFLOAT16,
        )  # fmt: skip
        expected = -(d.T @ a)
        np.testing.assert_allclose(client.pull(10), expected[:11].ravel(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(client.pull(11), expected[11:].ravel(), rtol=1e-4, atol=1e-5)


def test_waiting_factors_of_different_rates_and_sizes_are_joined() -> None:
    with harness(lanes=2) as h:
        spans(h, "sgd", 8)
        client = h.connect()
        expected = np.zeros((30, 8), np.float32)
        for i in range(12):
            samples, rate = 1 + i % 4, 0.1 * (i % 3)
            a, d = floats(samples, 8, seed=i), floats(samples, 30, seed=100 + i)
            expected -= np.float32(rate) * (d.T @ a)
            client.send(
                Kind.FACTORS, a.tobytes() + d.tobytes(), chunk=10, count=samples, rate=rate,
                sequence=i,
            )  # fmt: skip
        assert [client.receive().seen for _ in range(12)] == list(range(1, 13))
        np.testing.assert_allclose(client.pull(10), expected[:11].ravel(), rtol=1e-3, atol=1e-4)
        reply = client.ask(Kind.PULL, chunk=11)
        assert reply.seen == 12
        np.testing.assert_allclose(reply.floats, expected[11:].ravel(), rtol=1e-3, atol=1e-4)


def test_factors_address_a_span_by_its_first_chunk() -> None:
    with harness(lanes=2) as h:
        spans(h, "sgd", 8)
        payload = floats(1, 8 + 19).tobytes()
        reply = h.connect().ask(Kind.FACTORS, payload, chunk=11, count=1)
        assert (reply.kind, reply.count) == (Kind.REFUSED, Refusal.UNKNOWN_CHUNK)
        assert "not the first of a span" in reply.sentence


def test_rows_that_do_not_follow_each_other_are_spans_of_their_own() -> None:
    with harness() as h:
        for chunk, first_row in enumerate((0, 20)):
            h.add(chunk, 10, 3, parameter=1, first_row=first_row)
        h.server.start()
        client = h.connect()
        for chunk in (0, 1):
            a, d = floats(2, 3, seed=chunk), floats(2, 10, seed=9 + chunk)
            payload = a.tobytes() + d.tobytes()
            assert client.ask(Kind.FACTORS, payload, chunk=chunk, count=2).kind is Kind.ACK
            np.testing.assert_allclose(client.pull(chunk), -(d.T @ a).ravel(), rtol=1e-4, atol=1e-5)


def rows_payload(rows: list[int], values: Floats) -> bytes:
    return np.array(rows, np.uint32).tobytes() + values.tobytes()


@pytest.mark.parametrize("name", RULES)
def test_rows_equal_the_dense_gradient_of_those_rows(name: str, simd: str) -> None:
    with harness() as h:
        for chunk in (0, 1):
            h.add(chunk, 20, 13, rule=rule(name))
        h.server.start()
        client = h.connect()
        rows, values = [3, 19, 0], floats(3, 13)
        reply = client.ask(
            Kind.ROWS, rows_payload(rows, values), chunk=0, count=3, rate=0.5, sequence=1
        )
        assert (reply.kind, reply.seen) == (Kind.ACK, 1)
        gradient = np.zeros((20, 13), np.float32)
        gradient[rows] = values
        client.push(1, gradient, rate=0.5)
        ours, dense = client.pull(0).reshape(20, 13), client.pull(1).reshape(20, 13)
        np.testing.assert_allclose(ours[rows], dense[rows], rtol=1e-5)
        others = [row for row in range(20) if row not in rows]
        assert (ours[others] == 0).all()


def test_a_row_named_twice_is_updated_twice_and_one_beyond_the_chunk_refused() -> None:
    with harness() as h:
        h.add(0, 4, 2)
        h.server.start()
        client = h.connect()
        values = floats(2, 2)
        client.ask(Kind.ROWS, rows_payload([1, 1], values), count=2, sequence=1)
        np.testing.assert_allclose(client.pull(0).reshape(4, 2)[1], -values.sum(0), rtol=1e-6)
        refused = client.ask(Kind.ROWS, rows_payload([0, 4], values), count=2, sequence=2)
        assert (refused.kind, refused.count) == (Kind.REFUSED, Refusal.WRONG_SIZE)
        assert "Row 4 was named" in refused.sentence
        assert (client.pull(0).reshape(4, 2)[0] == 0).all()


@pytest.mark.parametrize("size", [1, 255, 5001, 100_001, 300_000])
@pytest.mark.parametrize("encoding", ["bfloat16", "int8", "topk"])
def test_encoded_deltas_are_applied_as_decoded(encoding: str, size: int) -> None:
    number = {"bfloat16": Encoding.BFLOAT16, "int8": Encoding.INT8, "topk": Encoding.TOP_K}
    kept = max(1, size // 10) if encoding == "topk" else 0
    with harness() as h:
        h.add(0, size, rule=rule("momentum"))
        h.add(1, size, rule=rule("momentum"))
        h.server.start()
        client = h.connect()
        for step in range(1, 4):
            payload = _native.encode(encoding, floats(size, seed=step), kept)
            decoded = np.empty(size, np.float32)
            _native.decode(encoding, payload, size, decoded)
            reply = client.ask(
                Kind.DELTA, payload, chunk=0, sequence=step, encoding=number[encoding], count=kept
            )
            assert (reply.kind, reply.seen) == (Kind.ACK, step), reply.sentence
            client.push(1, decoded)
        np.testing.assert_allclose(client.pull(0), client.pull(1), rtol=1e-6)


def test_positions_that_do_not_rise_are_refused() -> None:
    with harness() as h:
        h.add(0, 100)
        h.server.start()
        client = h.connect()
        for positions in ([5, 5], [7, 3], [99, 100]):
            payload = np.array(positions, np.uint32).tobytes() + floats(2).tobytes()
            reply = client.ask(Kind.DELTA, payload, encoding=Encoding.TOP_K, count=2, sequence=1)
            assert (reply.kind, reply.count) == (Kind.REFUSED, Refusal.WRONG_SIZE)
        assert (client.pull(0) == 0).all()


@pytest.mark.parametrize("refuse_nonfinite", [False, True])
def test_payloads_are_read_from_the_clients_memory(refuse_nonfinite: bool) -> None:
    size = 1 << 18
    with harness(refuse_nonfinite=refuse_nonfinite) as h:
        h.add(0, size)
        h.server.start()
        fd = sealed_memory(8 * size)
        with mmap.mmap(fd, 8 * size) as memory:
            client = h.connect(shared_fd=os.dup(fd), shared_bytes=8 * size)
            os.close(fd)
            place = 4 * size - 4096
            memory[place : place + 4 * size] = floats(size).tobytes()
            reply = client.ask(
                Kind.DELTA, place=place, payload_bytes=4 * size, sequence=1,
                flags=Flag.BY_REFERENCE,
            )  # fmt: skip
            assert (reply.kind, reply.seen) == (Kind.ACK, 1)
            np.testing.assert_allclose(client.pull(0), -floats(size))


@pytest.mark.parametrize("place", [8 * 1024 - 4092, 8 * 1024, 1 << 40, (1 << 64) - 4096])
def test_places_outside_the_clients_memory_are_refused(place: int) -> None:
    with harness() as h:
        h.add(0, 1024)
        h.server.start()
        client = h.connect(shared_fd=sealed_memory(8 * 1024), shared_bytes=8 * 1024)
        stranger = h.connect(2)
        for each in (client, stranger):
            reply = each.ask(
                Kind.DELTA, place=place, payload_bytes=4096, flags=Flag.BY_REFERENCE, sequence=1
            )
            assert (reply.kind, reply.count) == (Kind.REFUSED, Refusal.WRONG_SIZE)
            assert each.push(0, floats(1024)).kind is Kind.ACK  # the connection goes on


def test_memory_that_could_vanish_is_not_adopted() -> None:
    with harness() as h:
        h.add(0, 4)
        h.server.start()
        loose, short = sealed_memory(4096, seals=0), sealed_memory(4096)
        with pytest.raises(ValueError, match="F_SEAL_SHRINK"):
            h.connect(shared_fd=loose, shared_bytes=4096)
        with pytest.raises(ValueError, match="has 4096 bytes; expected at least 8192"):
            h.connect(shared_fd=short, shared_bytes=8192)
        os.close(loose)  # after a refusal they are still the caller's
        os.close(short)
        assert h.connect().push(0, floats(4)).kind is Kind.ACK
