"""Questions and answers between a run's processes: JSON over a greeted connection.

The administration's way (Adam, section 3.3.4 keeps it apart from updates and replication): a
server's heartbeats, a client's question where a bucket lives. Nothing large, nothing hot.

    CALL    {"command": ..., "arguments": {...}}          sequence: a number of the caller's
    ANSWER  {"answer": ...}  or  {"error": one sentence, "kind": its class}     the same sequence
"""

from __future__ import annotations

import itertools
import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from manyhands import errors
from manyhands.errors import ManyhandsError, ProtocolError, ServerUnavailable
from manyhands.messages import Hello, Kind, Refusal, Welcome, frame
from manyhands.transport.certificates import Credentials
from manyhands.transport.connection import greet
from manyhands.transport.endpoint import Endpoint
from manyhands.transport.framing import Frame, read_frame, send_frame
from manyhands.transport.listener import Arrival, listen

logger = logging.getLogger(__name__)

MAX_CALL_BYTES = 8 << 20
_DEADLINE_S = 10.0  # for a frame that has begun, and for an answer to be taken
_MOST_CONNECTIONS = 1024
_TOLD = {"ConfigError", "DataError", "ServerUnavailable", "StaleRoute", "WorkerError"}


@dataclass(frozen=True, slots=True)
class CallPeer:
    """Who asks: one connection. `number` is never used again by the same CallServer."""

    number: int
    client: int
    address: str
    purpose: str


Handle = Callable[[str, dict[str, Any], CallPeer], Any]


class CallServer:
    """Answers calls, a thread for each connection, through `handle(command, arguments, peer)`.

    What `handle` returns (anything that JSON holds) is the answer; a ManyhandsError that it raises
    is told to the caller. It is called by many threads at once and may block: only its caller
    waits. `on_close(peer)` is told, once, when a connection is gone. ConfigError when the port
    can't be had.
    """

    def __init__(
        self,
        host: str,
        port: int = 0,
        *,
        token: str,
        handle: Handle,
        credentials: Credentials | None = None,
        tls: bool = False,
        on_close: Callable[[CallPeer], None] | None = None,
    ) -> None:
        self._listener = listen(host, port, token=token, credentials=credentials, tls=tls)
        self._handle = handle
        self._on_close = on_close
        self._numbers = itertools.count()
        self._open: dict[int, socket.socket] = {}  # by the peer's number
        self._lock = threading.Lock()
        self._closed = False
        self._receptionist = threading.Thread(target=self._receive, name="calls", daemon=True)

    @property
    def endpoint(self) -> Endpoint:
        return self._listener.endpoint

    def start(self) -> None:
        """Let callers in."""
        self._listener.start()
        self._receptionist.start()

    def close(self) -> None:
        """Hang up on everybody. Calls that are being handled are not waited for."""
        self._listener.close()
        if self._receptionist.is_alive():
            self._receptionist.join()
        with self._lock:
            self._closed = True
            for sock in self._open.values():
                _hang_up(sock)

    def __enter__(self) -> CallServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _receive(self) -> None:
        for arrival in self._listener.arrivals():
            try:
                self._admit(arrival)
            except (OSError, RuntimeError) as error:
                logger.warning("The caller at %s was not let in: %s", arrival.peer, error)

    def _admit(self, arrival: Arrival) -> None:
        if arrival.fds or len(self._open) >= _MOST_CONNECTIONS:
            sentence = f"Calls bring no memory, and {_MOST_CONNECTIONS} connections are the most."
            arrival.refuse(Refusal.NOT_ALLOWED, sentence)
            return
        hello = arrival.hello
        sock = socket.socket(fileno=arrival.welcome(Welcome(lanes=1, map_version=0)))
        peer = CallPeer(next(self._numbers), hello.client, arrival.peer, hello.purpose)
        with self._lock:
            self._open[peer.number] = sock
        threading.Thread(
            target=self._serve, args=(sock, peer), name=f"call {peer.number}", daemon=True
        ).start()

    def _serve(self, sock: socket.socket, peer: CallPeer) -> None:
        try:
            while _has_more(sock):
                heard = read_frame(
                    sock, limit_bytes=MAX_CALL_BYTES, deadline=time.monotonic() + _DEADLINE_S
                )
                answer = self._answer(*_call_in(heard), peer)
                until = time.monotonic() + _DEADLINE_S
                _send(sock, Kind.ANSWER, heard.header.sequence, answer, until)
        except ProtocolError as error:
            logger.warning("Hung up on the caller at %s: %s", peer.address, error)
        except OSError as error:
            logger.debug("the caller at %s left: %s", peer.address, error)
        finally:
            self._forget(sock, peer)

    def _forget(self, sock: socket.socket, peer: CallPeer) -> None:
        with self._lock:
            del self._open[peer.number]
            told = None if self._closed else self._on_close
        sock.close()
        if told is not None:
            told(peer)

    def _answer(self, command: str, arguments: dict[str, Any], peer: CallPeer) -> bytes:
        try:
            return _payload({"answer": self._handle(command, arguments, peer)})
        except ManyhandsError as error:
            return _payload({"error": str(error), "kind": type(error).__name__})
        except Exception as error:  # a role's main loop: one question must not end it
            logger.exception("The call %.100r of %s failed", command, peer.address)
            sentence = f"The call {command!r:.100} failed: {type(error).__name__}: {error!s:.500}"
            return _payload({"error": sentence, "kind": "ProtocolError"})


class Caller:
    """Puts calls to a CallServer, one after another, over a connection that it opens when needed.

    Any thread may call; they take turns. Nothing is tried again: a call that fails closes the
    connection, and the next one opens another. `bind_host` is the address of this machine that the
    connection comes from. `close` also ends a call that is under way, from any thread.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        token: str,
        credentials: Credentials | None = None,
        bind_host: str | None = None,
        purpose: str = "",
    ) -> None:
        self.endpoint = endpoint
        self._hello = Hello(token=token, client=secrets.randbits(63), lane=0, purpose=purpose)
        self._credentials = credentials
        self._bind_host = bind_host
        self._sequence = 0
        self._sock: socket.socket | None = None
        self._turn = threading.Lock()
        self._closed = False

    def call(self, command: str, timeout_s: float, **arguments: Any) -> Any:
        """The answer. ServerUnavailable when none comes in time; what the handler raised, raised.

        After ServerUnavailable the call may have been carried out or not.
        """
        with self._turn:
            self._sequence += 1
            try:
                reply = self._exchange(command, arguments, time.monotonic() + timeout_s)
            except OSError as error:  # a TimeoutError is an OSError
                self._drop()
                raise ServerUnavailable(
                    f"{self.endpoint} did not answer the call {command!r} within {timeout_s:g} s "
                    f"({error or type(error).__name__})."
                ) from error
            except BaseException:
                self._drop()
                raise
        if "error" in reply:
            raise _error_in(reply)
        return reply["answer"]

    def close(self) -> None:
        """Hang up for good. May be called twice, and from any thread."""
        self._closed = True
        sock = self._sock
        if sock is not None:
            _hang_up(sock)  # wakes a thread that waits on it
        with self._turn:
            self._drop()

    def __enter__(self) -> Caller:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _exchange(self, command: str, arguments: dict[str, Any], deadline: float) -> dict[str, Any]:
        sock = self._connected(deadline)
        call = _payload({"command": command, "arguments": arguments})
        _send(sock, Kind.CALL, self._sequence, call, deadline)
        heard = read_frame(sock, limit_bytes=MAX_CALL_BYTES, deadline=deadline)
        return _answer_in(heard, self._sequence)

    def _connected(self, deadline: float) -> socket.socket:
        if self._sock is None and not self._closed:
            greeting = greet(
                self.endpoint,
                self._hello,
                credentials=self._credentials,
                bind_host=self._bind_host,
                timeout_s=max(0.001, deadline - time.monotonic()),
            )
            self._sock = socket.socket(fileno=greeting.fd)
        if self._sock is None or self._closed:  # also when it was closed while we dialled
            raise ConnectionAbortedError("the caller is closing")
        return self._sock

    def _drop(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()


def _has_more(sock: socket.socket) -> bool:
    """Wait for the next frame's first byte, as long as it takes; False when the peer has left."""
    sock.settimeout(None)
    return bool(sock.recv(1, socket.MSG_PEEK))


def _payload(value: dict[str, Any]) -> bytes:
    payload = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    if len(payload) > MAX_CALL_BYTES:
        raise ProtocolError(
            f"A call or its answer has at most {MAX_CALL_BYTES} bytes; this has {len(payload)}."
        )
    return payload


def _send(sock: socket.socket, kind: Kind, sequence: int, payload: bytes, deadline: float) -> None:
    send_frame(sock, frame(kind, payload, sequence=sequence), deadline=deadline)


def _call_in(heard: Frame) -> tuple[str, dict[str, Any]]:
    value = _object_in(heard, Kind.CALL)
    command, arguments = value.get("command"), value.get("arguments")
    if len(value) != 2 or not isinstance(command, str) or not isinstance(arguments, dict):
        raise ProtocolError("A call has a command, which is a string, and an object of arguments.")
    return command, arguments


def _answer_in(heard: Frame, sequence: int) -> dict[str, Any]:
    value = _object_in(heard, Kind.ANSWER)
    if heard.header.sequence != sequence or value.keys() not in ({"answer"}, {"error", "kind"}):
        raise ProtocolError(f"Call {sequence} was not answered with an answer or an error.")
    return value


def _object_in(heard: Frame, kind: Kind) -> dict[str, Any]:
    if heard.header.kind is not kind:
        raise ProtocolError(f"Expected {kind.name} and heard {heard.header.kind.name}.")
    try:
        value = json.loads(heard.payload)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ProtocolError(f"{kind.name} holds a JSON object in UTF-8; this does not.")
    return value


def _error_in(reply: dict[str, Any]) -> ManyhandsError:
    name = reply["kind"] if reply["kind"] in _TOLD else "ProtocolError"
    error: ManyhandsError = getattr(errors, name)(str(reply["error"]))
    return error


def _hang_up(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
