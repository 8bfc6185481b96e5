"""Bad frames: refused with a sentence or dropped, counted, and never the end of a server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from raw_client import Encoding, Harness, Kind, RawClient, eventually, frame, harness

from manyhands.messages import PROTOCOL_VERSION, Refusal

GOOD = np.ones(100, np.float32)


def started(h: Harness) -> RawClient:
    h.add(0, 10, 10)
    h.add(1, 100, lane=1, lease=3)
    h.server.start()
    return h.connect()


REFUSED_AND_SKIPPED: dict[str, tuple[dict[str, Any], Refusal, str]] = {
    "unknown chunk": ({"chunk": 9}, Refusal.UNKNOWN_CHUNK, "does not hold chunk 9"),
    "another lane's": ({"chunk": 1, "lease": 3}, Refusal.WRONG_LANE, "lives on lane 1"),
    "old lease": ({"lease": 2}, Refusal.STALE_LEASE, "under lease 0; the frame names lease 2"),
    "another client": ({"client": 7}, Refusal.NOT_ALLOWED, "belongs to client 1"),
    "too short": ({"payload": b"1234"}, Refusal.WRONG_SIZE, "has 4 bytes; expected 400"),
    "too long": ({"payload": bytes(500_000)}, Refusal.WRONG_SIZE, "expected 400"),
    "empty": ({"payload": b""}, Refusal.WRONG_SIZE, "has 0 bytes"),
    "other encoding": ({"encoding": Encoding.INT8}, Refusal.WRONG_SIZE, "expected 104"),
    "too many kept": (
        {"encoding": Encoding.TOP_K, "count": 2**32 - 1}, Refusal.WRONG_SIZE, "4294967295 pos",
    ),
    "rate": ({"rate": float("nan")}, Refusal.NOT_FINITE, "learning rate"),
    "nan": ({"payload": (GOOD * np.nan).tobytes()}, Refusal.NOT_FINITE, "not finite"),
    "set": ({"kind": Kind.SET}, Refusal.NOT_ALLOWED, "administrator"),
    "get": ({"kind": Kind.GET}, Refusal.NOT_ALLOWED, "administrator"),
    "pull with payload": ({"kind": Kind.PULL}, Refusal.WRONG_SIZE, "expected 0"),
    "pull of top-k": (
        {"kind": Kind.PULL, "payload": b"", "encoding": Encoding.TOP_K},
        Refusal.WRONG_SIZE, "bfloat16 or int8",
    ),
    "no samples": ({"kind": Kind.FACTORS}, Refusal.WRONG_SIZE, "0 samples"),
    "many samples": (
        {"kind": Kind.FACTORS, "count": 2**32 - 1}, Refusal.WRONG_SIZE, "1 to 65536",
    ),
    "factors' size": (
        {"kind": Kind.FACTORS, "count": 6}, Refusal.WRONG_SIZE, "expected 480",
    ),
    "factors' encoding": (
        {"kind": Kind.FACTORS, "count": 5, "encoding": Encoding.INT8},
        Refusal.WRONG_SIZE, "float32 or bfloat16",
    ),
    "rows' size": ({"kind": Kind.ROWS, "count": 10}, Refusal.WRONG_SIZE, "expected 440"),
    "many rows": ({"kind": Kind.ROWS, "count": 2**32 - 1}, Refusal.WRONG_SIZE, "expected 1889"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_AND_SKIPPED)
def test_a_bad_frame_is_refused_and_the_connection_goes_on(name: str) -> None:
    fields, refusal, sentence = REFUSED_AND_SKIPPED[name]
    fields = {"kind": Kind.DELTA, "payload": GOOD.tobytes(), "sequence": 1, **fields}
    with harness(lanes=2) as h:
        client = started(h)
        for _ in range(2):
            reply = client.ask(**fields)
            assert (reply.kind, reply.count) == (Kind.REFUSED, refusal)
            assert sentence in reply.sentence
        assert (client.pull(0) == 0).all()
        assert client.push(0, GOOD, sequence=1).seen == 1
        assert h.server.stats()["refused"] == {refusal.name.lower(): 2}


@pytest.mark.parametrize("where", [0, 57, 99])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [100, 400_000])
def test_no_part_of_an_update_that_is_not_finite_is_applied(
    size: int, value: float, where: int
) -> None:
    with harness() as h:
        h.add(0, size)
        h.server.start()
        client = h.connect()
        gradient = np.ones(size, np.float32)
        gradient[where * size // 100] = value
        reply = client.push(0, gradient)
        assert (reply.kind, reply.count) == (Kind.REFUSED, Refusal.NOT_FINITE)
        assert (client.pull(0) == 0).all()
        assert client.push(0, np.ones(size, np.float32), sequence=1).seen == 1


def test_numbers_that_are_not_finite_pass_where_that_is_configured() -> None:
    with harness(refuse_nonfinite=False) as h:
        h.add(0, 3)
        h.server.start()
        client = h.connect()
        assert client.push(0, np.array([1, np.nan, 2], np.float32)).kind is Kind.ACK
        assert np.isnan(client.pull(0)[1])


@pytest.mark.parametrize("kind", [Kind.ROWS, Kind.FACTORS])
def test_rows_and_factors_that_are_not_finite_are_refused(kind: Kind) -> None:
    numbers = np.ones(20, np.float32)
    numbers[13] = np.inf
    payload = (np.zeros(2, np.uint32).tobytes() if kind is Kind.ROWS else b"") + numbers.tobytes()
    with harness(lanes=2) as h:
        client = started(h)
        count = 2 if kind is Kind.ROWS else 1
        reply = client.ask(kind, payload, count=count, sequence=1)
        assert (reply.kind, reply.count) == (Kind.REFUSED, Refusal.NOT_FINITE)
        assert (client.pull(0) == 0).all()


CLOSED: dict[str, tuple[dict[str, Any], Refusal, str]] = {
    "magic": ({"magic": 0x20544547}, Refusal.MALFORMED, "no frame"),
    "version": (
        {"version": 9},
        Refusal.VERSION,
        f"version 9; this server speaks version {PROTOCOL_VERSION}",
    ),
    "kind": ({"kind": 77}, Refusal.MALFORMED, "kind 77"),
    "a reply": ({"kind": Kind.ACK}, Refusal.MALFORMED, "kind 8"),
    "hello": ({"kind": Kind.HELLO}, Refusal.MALFORMED, "kind 1"),
    "encoding": ({"encoding": 7}, Refusal.MALFORMED, "flags 112"),
    "length": ({"payload_bytes": 2**32 - 1}, Refusal.TOO_LARGE, "at most 67108864"),
}


@pytest.mark.parametrize("name", CLOSED)
@pytest.mark.parametrize("tcp", [False, True])
def test_a_stream_that_cannot_be_followed_is_refused_and_closed(name: str, tcp: bool) -> None:
    fields, refusal, sentence = CLOSED[name]
    fields = {"kind": Kind.DELTA, "payload": GOOD.tobytes(), "sequence": 1, **fields}
    with harness(lanes=2) as h:
        started(h)
        client, other = h.connect(tcp=tcp), h.connect(2)
        client.sock.sendall(frame(Kind.PULL) + frame(**fields) + bytes(600_000))
        assert client.receive().kind is Kind.VALUES  # what came before is answered
        reply = client.receive()
        assert (reply.kind, reply.count) == (Kind.REFUSED, refusal)
        assert sentence in reply.sentence
        assert client.is_closed()
        assert other.push(0, GOOD).kind is Kind.ACK
        # also when the peer never closes its own end
        eventually(lambda: h.server.stats()["connections"] == 2)
        assert h.server.stats()["refused"] == {refusal.name.lower(): 1}


def test_a_large_length_costs_no_memory() -> None:
    with harness() as h:
        h.add(0, 1000)
        h.server.start()
        clients = [h.connect(i) for i in range(50)]
        for client in clients:
            client.send(Kind.DELTA, payload_bytes=64 << 20)  # a size that no chunk has
        for client in clients:
            assert client.receive().count == Refusal.WRONG_SIZE
        assert h.server.stats()["waiting_bytes"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_noise_never_stops_a_server(seed: int) -> None:
    random = np.random.default_rng(seed)
    with harness(lanes=2) as h:
        started(h)
        for _ in range(20):
            noise = h.connect()
            data = bytearray(frame(Kind.DELTA, GOOD.tobytes(), sequence=1) * 3)
            for at in random.integers(0, len(data), 20):
                data[at] = random.integers(256)
            noise.sock.sendall(data[: random.integers(1, len(data))])
            noise.close()
        eventually(lambda: h.server.stats()["connections"] <= 1)
        assert h.connect(2).push(0, GOOD).kind is Kind.ACK
