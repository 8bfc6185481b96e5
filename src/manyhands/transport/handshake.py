"""The first two frames of a connection: a client's Hello, a server's Welcome or refusal.

    client                              server
    Hello (token, client, lane) ---->   version, size, token, memory: checked in this order
                                <----   Welcome, or Refused with one sentence
    from here on the connection belongs to the native ends

Over a local socket the Hello brings the descriptor of the client's shared memory and the Welcome
that of the server's. docs/protocol.md describes the bytes.
"""

from __future__ import annotations

import hmac
import os
import socket
from collections.abc import Sequence
from contextlib import suppress

from manyhands.errors import ProtocolError
from manyhands.messages import (
    MAX_HELLO_BYTES,
    MAX_WELCOME_BYTES,
    PROTOCOL_VERSION,
    Hello,
    Kind,
    Refusal,
    Welcome,
    frame,
    refused,
)
from manyhands.transport.framing import (
    Frame,
    NotOurs,
    VersionMismatch,
    close_fds,
    read_frame,
    send_frame,
)
from manyhands.transport.sealing import never_shrinks


def say_hello(
    sock: socket.socket, hello: Hello, fds: Sequence[int], deadline: float
) -> tuple[Welcome, tuple[int, ...]]:
    """The client's side: introduce ourselves; the server's welcome and its memory, if it came.

    ProtocolError with the server's own sentence when it refuses us, and for an answer that is none.
    """
    send_frame(sock, frame(Kind.HELLO, hello.encode()), deadline=deadline, fds=fds)
    answer = read_frame(sock, limit_bytes=MAX_WELCOME_BYTES, deadline=deadline)
    try:
        welcome = _welcome_in(answer)
        _require_memory(answer.fds, welcome.memory_bytes)
    except BaseException:
        close_fds(answer.fds)
        raise
    return welcome, answer.fds


def hear_hello(sock: socket.socket, token: str, deadline: float) -> tuple[Hello, tuple[int, ...]]:
    """The server's side: who is there, and its memory, if it came; refuses anybody who may not.

    ProtocolError after the peer was told, ConnectionError or TimeoutError when it didn't speak.
    """
    try:
        heard = read_frame(sock, limit_bytes=MAX_HELLO_BYTES, deadline=deadline)
        try:
            return _hello_in(heard, token), heard.fds
        except BaseException:
            close_fds(heard.fds)
            raise
    except NotOurs:
        raise
    except VersionMismatch as error:
        refuse(sock, error.refusal, str(error), deadline, version=error.version)
        raise
    except ProtocolError as error:
        refuse(sock, error.refusal, str(error), deadline)
        raise


def refuse(
    sock: socket.socket,
    refusal: Refusal | int,
    sentence: str,
    deadline: float,
    *,
    version: int = PROTOCOL_VERSION,
) -> None:
    """Tell a peer why it is turned away; one that does not listen is not waited for."""
    with suppress(OSError):
        send_frame(sock, refused(refusal, sentence, version=version), deadline=deadline)


def welcome(sock: socket.socket, greeting: Welcome, fds: Sequence[int], deadline: float) -> None:
    """Accept a peer."""
    send_frame(sock, frame(Kind.WELCOME, greeting.encode()), deadline=deadline, fds=fds)


def _hello_in(heard: Frame, token: str) -> Hello:
    if heard.header.kind is not Kind.HELLO:
        raise ProtocolError(f"A connection begins with a Hello, not with {heard.header.kind.name}.")
    hello = Hello.decode(heard.payload)
    if not hmac.compare_digest(hello.token.encode(), token.encode()):
        raise ProtocolError("The token is not that of this run.", refusal=Refusal.STRANGER)
    _require_memory(heard.fds, hello.shared_bytes)
    if heard.fds and not never_shrinks(heard.fds[0], hello.shared_bytes):
        raise ProtocolError("The shared memory is not sealed against shrinking.")
    return hello


def _welcome_in(answer: Frame) -> Welcome:
    kind = answer.header.kind
    if kind is Kind.REFUSED:
        sentence = answer.payload.decode(errors="replace")
        raise ProtocolError(f"The server refused: {sentence}", refusal=answer.header.count)
    if kind is not Kind.WELCOME:
        raise ProtocolError(f"A Hello is answered with a Welcome, not with {kind.name}.")
    return Welcome.decode(answer.payload)


def _require_memory(fds: Sequence[int], size_bytes: int) -> None:
    if bool(fds) != (size_bytes > 0):
        raise ProtocolError(
            f"{size_bytes} bytes of shared memory were announced and {len(fds)} descriptors came."
        )
    if fds and os.fstat(fds[0]).st_size < size_bytes:
        raise ProtocolError(f"The shared memory has fewer than the {size_bytes} bytes announced.")
