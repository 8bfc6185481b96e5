"""Whatever arrives at a server's door: it is answered or dropped, and the next client gets in."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.errors import ProtocolError
from manyhands.messages import Header, Hello, Kind, Refusal, Welcome, frame
from manyhands.transport.connection import greet
from manyhands.transport.framing import NotOurs, VersionMismatch, close_fds
from manyhands.transport.handshake import hear_hello, say_hello
from manyhands.transport.listener import listen

TOKEN = "ab" * 16
HELLO = Hello(token=TOKEN, client=1, lane=0)
GOOD = frame(Kind.HELLO, HELLO.encode())


def flipped(data: bytes, position: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[position % len(data)] ^= 1 << bit
    return bytes(changed)


headers = st.builds(
    lambda kind, size, version, rest: (
        Header(kind=kind, payload_bytes=size, version=version).pack() + rest
    ),
    st.sampled_from(Kind),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 1, 1, 0, 2, 65535]),
    st.binary(max_size=300),
)
garbage = st.one_of(
    st.binary(max_size=400),
    st.binary(max_size=400).map(lambda rest: b"MHPS\x01\x00" + rest),
    headers,
    st.binary(max_size=400).map(lambda payload: frame(Kind.HELLO, payload)),
    st.integers(0, len(GOOD) - 1).map(lambda end: GOOD[:end]),
    st.builds(flipped, st.just(GOOD), st.integers(0, 10_000), st.integers(0, 7)),
)


def hear(said: bytes, family: int) -> tuple[object, bytes]:
    """What the server's side makes of these bytes, and what it answered."""
    ours, theirs = socket.socketpair() if family == socket.AF_UNIX else tcp_pair()
    with ours, theirs:
        ours.sendall(said)
        ours.shutdown(socket.SHUT_WR)
        try:
            outcome: object = hear_hello(theirs, TOKEN, time.monotonic() + 10)
        except (ProtocolError, OSError) as error:
            outcome = error
        theirs.close()
        ours.settimeout(10)
        try:
            return outcome, ours.recv(65536)
        except ConnectionResetError:  # it left with some of our garbage unread
            return outcome, b""


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        ours = socket.create_connection(door.getsockname())
        return ours, door.accept()[0]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
@settings(max_examples=150, deadline=None)
@given(said=garbage)
def test_garbage_is_refused_or_dropped(family, said):
    outcome, answer = hear(said, family)
    if isinstance(outcome, tuple):  # a flipped bit may leave a good greeting, of another client
        hello, fds = outcome
        assert hello.token == TOKEN
        assert fds == ()
        return
    assert isinstance(outcome, (ProtocolError, OSError))
    if isinstance(outcome, VersionMismatch):
        assert answer[4:6] == said[4:6] or answer == b""
    elif isinstance(outcome, ProtocolError) and not isinstance(outcome, NotOurs) and answer:
        refusal = Header.unpack(answer[:64])
        assert refusal.kind is Kind.REFUSED
        assert Refusal(refusal.count) in Refusal
    if isinstance(outcome, NotOurs):
        assert answer == b""


@settings(max_examples=150, deadline=None)
@given(answer=garbage | headers | st.binary(max_size=300).map(lambda b: frame(Kind.WELCOME, b)))
def test_a_client_survives_any_answer(answer):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(answer)
        theirs.shutdown(socket.SHUT_WR)
        try:
            welcome, fds = say_hello(ours, HELLO, (), time.monotonic() + 10)
        except (ProtocolError, OSError):
            return
        assert isinstance(welcome, Welcome)
        close_fds(fds)


def test_a_server_fed_garbage_still_welcomes_and_keeps_nothing():
    """One listener, a thousand strangers at both doors, descriptors and threads as before."""
    said = [bytes([n % 256]) * (n % 130) for n in range(250)] + [
        flipped(GOOD, n, n % 8) for n in range(250)
    ]
    with listen("127.0.0.1", token=TOKEN) as listener:
        arrived: list[Hello] = []

        def serve() -> None:
            for arrival in listener.arrivals():
                arrived.append(arrival.hello)
                with suppress(OSError):  # a flipped bit in its number, and gone already
                    os.close(arrival.welcome(Welcome(lanes=1, map_version=1)))

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        os.close(greet(listener.endpoint, HELLO).fd)
        files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        for data in said:
            for sock in (_tcp(listener), _local(listener)):
                with sock, suppress(OSError):  # it may have been turned away already
                    sock.sendall(data)
        greeting = greet(listener.endpoint, HELLO, same_machine=True)
        os.close(greeting.fd)
        end = time.monotonic() + 30
        while listener.strangers + len(arrived) < 2 * len(said) + 2:
            assert time.monotonic() < end, (listener.strangers, len(arrived))
            time.sleep(0.01)
        while threading.active_count() > threads or len(os.listdir("/proc/self/fd")) > files:
            assert time.monotonic() < end, "threads or descriptors are left"
            time.sleep(0.01)
        listener.close()
        server.join(10)


def _tcp(listener):
    return socket.create_connection((listener.endpoint.host, listener.endpoint.port))


def _local(listener):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(f"\0{listener.endpoint.unix}")
    return sock
