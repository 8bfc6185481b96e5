"""A server fed garbage answers or drops it, counts it, goes on serving others and does not grow."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from manyhands.messages import HEADER_BYTES, Encoding, Flag, Header, Hello, Kind, Refusal
from manyhands.transport.connection import greet
from tests.cluster.servers import Fleet, fleet


@pytest.fixture(scope="module")
def running():
    with fleet(lanes=2) as servers:
        yield servers


@pytest.fixture(autouse=True)
def others_are_served(running: Fleet) -> Iterator[None]:
    """Before and after each test an honest client pushes, over a connection that stays."""
    with running.client() as client:
        before = running.weights()
        client.servers[0].push(running.flat(1), rate=1.0, steps=1)
        yield
        client.servers[0].push(running.flat(1), rate=1.0, steps=1)
        assert client.counters.reconnects == 0
        np.testing.assert_array_equal(running.weights(), before - 2 * running.used())


@contextmanager
def let_in(running: Fleet) -> Iterator[socket.socket]:
    """A connection of somebody who knows the token."""
    greeting = greet(running.endpoints[0], Hello(token=running.token, client=5, lane=0))
    with socket.socket(fileno=greeting.fd) as sock:
        sock.settimeout(20)
        yield sock


def read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            break
        data += piece
    return data


def answer(sock: socket.socket) -> tuple[Header, bytes]:
    header = Header.unpack(read(sock, HEADER_BYTES))
    return header, read(sock, header.payload_bytes)


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def chunk_on_lane(running: Fleet, lane: int) -> int:
    shards = running.shards
    return next(chunk.number for chunk in shards.chunks if shards.lane_of(chunk) == lane)


def delta(chunk: int, payload_bytes: int, **words: object) -> bytes:
    return Header(
        kind=Kind.DELTA, chunk=chunk, client=5, sequence=1, payload_bytes=payload_bytes, **words
    ).pack()


def with_byte(header: bytes, position: int, value: int) -> bytes:
    return header[:position] + bytes([value]) + header[position + 1 :]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda own: with_byte(delta(own, 4), 0, 0), Refusal.MALFORMED),
        (lambda own: with_byte(delta(own, 4), 4, 77), Refusal.VERSION),
        (lambda own: with_byte(delta(own, 4), 6, 200), Refusal.MALFORMED),
        (lambda own: with_byte(delta(own, 4), 6, Kind.WELCOME), Refusal.MALFORMED),
        (lambda own: delta(own, 2**32 - 1), Refusal.TOO_LARGE),
        (lambda own: os.urandom(64), Refusal.MALFORMED),
    ],
    ids=["magic", "version", "kind", "a server's kind", "absurd length", "random"],
)
def test_what_is_no_frame_is_answered_and_the_connection_closed(running, make, expected):
    with let_in(running) as sock:
        sock.sendall(make(chunk_on_lane(running, 0)))
        header, sentence = answer(sock)
        assert header.kind is Kind.REFUSED
        assert header.count == expected, sentence
        assert sentence.decode().strip()
        assert is_closed(sock)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda own, other: delta(4_000_000_000, 8) + bytes(8), Refusal.UNKNOWN_CHUNK),
        (lambda own, other: delta(own, 8) + bytes(8), Refusal.WRONG_SIZE),
        (lambda own, other: delta(own, 0), Refusal.WRONG_SIZE),
        (lambda own, other: delta(other, 8) + bytes(8), Refusal.WRONG_LANE),
        (
            lambda own, other: delta(own, 8, encoding=Encoding.TOP_K, count=1) + b"\xff" * 8,
            None,
        ),
        (lambda own, other: delta(own, 64, flags=Flag.BY_REFERENCE, place=2**63), None),
        (
            lambda own, other: (
                Header(kind=Kind.SET, chunk=own, client=5, payload_bytes=8).pack() + bytes(8)
            ),
            Refusal.NOT_ALLOWED,
        ),
        (lambda own, other: Header(kind=Kind.GET, chunk=own, client=5).pack(), Refusal.NOT_ALLOWED),
    ],
    ids=["unknown", "short", "empty", "lane", "position", "reference", "set", "get"],
)
def test_what_can_not_be_applied_is_answered_and_the_connection_stays(running, make, expected):
    own, other = chunk_on_lane(running, 0), chunk_on_lane(running, 1)
    with let_in(running) as sock:
        sock.sendall(make(own, other))
        header, sentence = answer(sock)
        assert header.kind is Kind.REFUSED
        assert expected is None or header.count == expected, sentence
        sock.sendall(Header(kind=Kind.PULL, chunk=own, client=5, sequence=9).pack())
        header, _ = answer(sock)
        assert (header.kind, header.sequence) == (Kind.VALUES, 9)


def test_a_truncated_frame_is_forgotten_with_its_connection(running):
    chunk = running.shards.chunks[chunk_on_lane(running, 0)]
    for kept in (1, 63, 64, 65, 64 + 2 * chunk.floats):
        with let_in(running) as sock:
            frame = delta(chunk.number, 4 * chunk.floats) + bytes(4 * chunk.floats)
            sock.sendall(frame[:kept])
    running.wait_for(lambda r: r.waiting_bytes == 0, what="half payloads are given up")


def test_memory_stays_bounded_under_random_bytes(running):
    source = random.Random(3)
    own = chunk_on_lane(running, 0)

    def noise() -> bytes:
        if source.random() < 0.5:
            return source.randbytes(source.randrange(1, 4096))
        header = bytearray(delta(own, source.randrange(2**32)))
        for _ in range(source.randrange(4)):
            header[source.randrange(6, 64)] = source.randrange(256)
        return bytes(header) + source.randbytes(source.randrange(4096))

    def feed(times: int) -> None:
        for _ in range(times):
            with let_in(running) as sock:
                try:
                    for _ in range(5):
                        sock.sendall(noise())
                except OSError:  # it was closed on us
                    continue

    feed(20)
    before = running.report()
    feed(150)
    running.wait_for(lambda r: r.connections <= 2, what="connections are closed")
    after = running.report()
    assert after.resident_bytes - before.resident_bytes < 16 << 20
    assert after.refusals > before.refusals


def test_bytes_before_the_greeting_cost_nothing(running):
    source = random.Random(4)
    before = running.report()
    for _ in range(40):
        address = (running.endpoints[0].host, running.endpoints[0].port)
        with socket.create_connection(address) as sock:
            sock.settimeout(20)
            try:
                sock.sendall(source.randbytes(200))
                assert is_closed(sock) or sock.recv(4096) is not None
            except ConnectionError:
                continue
    running.wait_for(lambda r: r.strangers >= before.strangers + 40, what="strangers are counted")
