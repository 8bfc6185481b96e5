"""A server's door: accepts connections and lets in only those that know the run's secret.

    1 accept    one thread, both doors (TCP, and a local socket where the address is loopback)
    2 check     a short-lived thread for each: whose process, TLS, Hello; 5 s and no longer
    3 arrive    the server takes authenticated peers from `arrivals`, welcomes or refuses them

A silent stranger holds one of 64 threads for at most 5 s and never the others up.
"""

from __future__ import annotations

import errno
import logging
import queue
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from manyhands.errors import ConfigError, ProtocolError
from manyhands.messages import Hello, Refusal, Welcome
from manyhands.transport import handshake
from manyhands.transport.certificates import Credentials
from manyhands.transport.connection import tune
from manyhands.transport.endpoint import Endpoint, is_loopback, is_wildcard
from manyhands.transport.framing import close_fds
from manyhands.transport.strangers import Strangers
from manyhands.transport.tls import TlsStream, server_context
from manyhands.transport.tunnel import tunnel
from manyhands.transport.unix_socket import AVAILABLE, listen_unix, require_same_user

logger = logging.getLogger(__name__)

_DEADLINE_S = 5.0
_MOST_PENDING = 64
_BACKLOG = 128
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(slots=True, eq=False)
class Arrival:
    """An authenticated peer that waits for an answer. Call `welcome` or `refuse`, once.

    `fds` holds the descriptor of its shared memory when `hello.shared_bytes` says so: checked to
    be of that size and sealed. It belongs to whoever called `welcome`.
    """

    hello: Hello
    fds: tuple[int, ...]
    same_machine: bool
    peer: str
    _sock: socket.socket

    def welcome(self, greeting: Welcome, fds: Sequence[int] = ()) -> int:
        """Accept; the connection's descriptor, in blocking mode, owned by the caller.

        `fds` (the server's memory, for a peer on the same machine) stay the caller's. OSError when
        the peer has left, and then `self.fds` are closed.
        """
        try:
            handshake.welcome(self._sock, greeting, fds, time.monotonic() + _DEADLINE_S)
        except BaseException:
            self.close()
            raise
        self._sock.settimeout(None)
        return self._sock.detach()

    def refuse(self, refusal: Refusal, sentence: str) -> None:
        """Turn it away, saying why."""
        handshake.refuse(self._sock, refusal, sentence, time.monotonic() + _DEADLINE_S)
        self.close()

    def close(self) -> None:
        """Leave without a word."""
        self._sock.close()
        close_fds(self.fds)
        self.fds = ()


class Listener:
    """An open door. `arrivals` belongs to one thread; `close` may be called from any, and twice.

    `strangers` counts those who were turned away before the server heard of them.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        doors: Sequence[socket.socket],
        token: str,
        context: ssl.SSLContext | None,
    ) -> None:
        self.endpoint = endpoint
        self._doors = doors
        self._token = token
        self._context = context
        self._strangers = Strangers()
        self._arrived: queue.SimpleQueue[Arrival | None] = queue.SimpleQueue()
        self._free_places = threading.Semaphore(_MOST_PENDING)
        self._closed = threading.Event()
        self._wake_up, self._woken = socket.socketpair()
        self._acceptor = threading.Thread(target=self._accept_all, name="accept", daemon=True)

    def start(self) -> None:
        """Begin to accept."""
        self._acceptor.start()

    @property
    def strangers(self) -> int:
        return self._strangers.count

    def arrivals(self) -> Iterator[Arrival]:
        """Authenticated peers as they come; blocks in between, ends with `close`."""
        while (arrival := self._arrived.get()) is not None:
            yield arrival

    def close(self) -> None:
        """Shut the doors and end `arrivals`. Connections that were welcomed live on."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._wake_up.close()
        if self._acceptor.is_alive():
            self._acceptor.join()
        for sock in (*self._doors, self._woken):
            sock.close()
        self._arrived.put(None)

    def __enter__(self) -> Listener:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _accept_all(self) -> None:
        with selectors.DefaultSelector() as selector:
            for door in (*self._doors, self._woken):
                selector.register(door, selectors.EVENT_READ)
            while not self._closed.is_set():
                for key, _ in selector.select():
                    if key.fileobj is not self._woken:
                        assert isinstance(key.fileobj, socket.socket)
                        self._accept(key.fileobj)

    def _accept(self, door: socket.socket) -> None:
        while not self._free_places.acquire(timeout=0.1):
            if self._closed.is_set():
                return
        try:
            sock, address = door.accept()
        except OSError as error:  # it left already, or this process has too much open
            self._free_places.release()
            if error.errno in _NO_DESCRIPTORS:
                logger.warning("A connection could not be accepted: %s.", error.strerror)
                self._closed.wait(0.1)
            return
        peer = f"{address[0]}:{address[1]}" if address else "this machine"
        threading.Thread(target=self._check, args=(sock, peer), name="greet", daemon=True).start()

    def _check(self, sock: socket.socket, peer: str) -> None:
        try:
            arrival = self._arrival(sock, peer, time.monotonic() + _DEADLINE_S)
        except (ProtocolError, OSError) as error:  # an SSLError is an OSError
            if not self._closed.is_set():
                self._strangers.turned_away(peer, str(error) or type(error).__name__)
        else:
            if self._closed.is_set():
                arrival.close()  # nobody takes it any more
            else:
                self._arrived.put(arrival)
        finally:
            self._free_places.release()

    def _arrival(self, sock: socket.socket, peer: str, deadline: float) -> Arrival:
        local = sock.family == socket.AF_UNIX
        try:
            if local:
                require_same_user(sock)
            else:
                tune(sock)
                if self._context is not None:
                    stream = TlsStream(sock, self._context, server_side=True)
                    stream.shake_hands(deadline)
                    sock = tunnel(stream)
            hello, fds = handshake.hear_hello(sock, self._token, deadline)
        except BaseException:
            sock.close()
            raise
        return Arrival(hello, fds, local, peer, sock)


def listen(
    host: str,
    port: int = 0,
    *,
    token: str,
    credentials: Credentials | None = None,
    tls: bool = False,
) -> Listener:
    """A listener on this address; port 0 takes any that is free. Use it in a `with` statement.

    ConfigError when the address can't be had, is not one that clients could use, or is not
    loopback and there are no credentials.
    """
    if is_wildcard(host):
        raise ConfigError(
            f"A server can't be reached at {host!r}: name one address of this machine."
        )
    encrypted = tls or not is_loopback(host)
    context = server_context(credentials, host) if encrypted else None
    doors = [_tcp_door(host, port)]
    unix = None
    if is_loopback(host) and AVAILABLE:
        door, unix = listen_unix(_BACKLOG)
        doors.append(door)
    for door in doors:
        door.setblocking(False)  # a peer may have left between the selector's word and `accept`
    endpoint = Endpoint(host, doors[0].getsockname()[1], unix, tls)
    return Listener(endpoint, doors, token, context)


def _tcp_door(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except socket.gaierror as error:
        raise ConfigError(
            f"A server can't listen on {host!r}: no machine has this name ({error.strerror})."
        ) from error
    except OSError as error:
        raise ConfigError(f"A server can't listen on {host}:{port}: {_advice(error)}.") from error


def _advice(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is in use; name another, or 0 for any that is free"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have the address; name one that it has"
    if error.errno == errno.EACCES:
        return "only the system's administrator may use the port; name one above 1023"
    return str(error.strerror)
