"""A client's way in: connect to a server's endpoint, encrypt where needed, introduce ourselves."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from manyhands.errors import ConfigError, ServerUnavailable
from manyhands.messages import Hello, Welcome
from manyhands.transport.certificates import Credentials
from manyhands.transport.endpoint import Endpoint
from manyhands.transport.handshake import say_hello
from manyhands.transport.tls import TlsStream, client_context
from manyhands.transport.tunnel import tunnel
from manyhands.transport.unix_socket import connect_unix

_TIMEOUT_S = 5.0
# A peer that was switched off or cut off sends nothing: after this much silence the kernel asks for
# a sign of life, every so often, and gives the connection up when for so long none has come, nor a
# receipt for what was sent. A process that is paused does not count: its kernel answers for it.
_SILENCE_S, _ASK_EVERY_S, _WITHOUT_ANSWER_S = 3, 2, 10
_SEND_BUFFER_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Greeting:
    """A server's answer. `fd` is the connection, blocking; `fds` its memory. All owned by us."""

    welcome: Welcome
    fds: tuple[int, ...]
    fd: int


def greet(
    endpoint: Endpoint,
    hello: Hello,
    *,
    credentials: Credentials | None = None,
    same_machine: bool = False,
    fds: Sequence[int] = (),
    bind_host: str | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> Greeting:
    """Open a connection and be welcomed on it. Blocks for `timeout_s` at most.

    `bind_host` is the address of this machine that it comes from. `fds` (our memory's descriptor,
    on the same machine only) stay the caller's. ServerUnavailable when nobody answers and trying
    again may help, ProtocolError when the server refuses or is not what it should be, ConfigError
    when the way there can't be right.
    """
    if fds and not same_machine:
        raise ValueError("descriptors reach a server of the same machine only")
    deadline = time.monotonic() + timeout_s
    sock = connect(
        endpoint,
        credentials,
        same_machine=same_machine,
        bind_host=bind_host,
        timeout_s=timeout_s,
    )
    try:
        welcome, received = say_hello(sock, hello, fds, deadline)
    except TimeoutError:
        sock.close()
        raise ServerUnavailable(_silent(endpoint, timeout_s)) from None
    except OSError as error:
        sock.close()
        raise ServerUnavailable(
            f"The server at {endpoint} closed the connection instead of welcoming it: it is "
            f"ending, too busy or of another run ({type(error).__name__})."
        ) from error
    except BaseException:
        sock.close()
        raise
    sock.settimeout(None)
    return Greeting(welcome, received, sock.detach())


def connect(
    endpoint: Endpoint,
    credentials: Credentials | None = None,
    *,
    same_machine: bool = False,
    bind_host: str | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> socket.socket:
    """A socket on which plain bytes reach the server: local, TCP, or the end of a TLS tunnel."""
    try:
        if same_machine:
            return connect_unix(_local_name(endpoint), timeout_s)
        return _connect_tcp(endpoint, credentials, bind_host, timeout_s)
    except ConnectionRefusedError as error:
        raise ServerUnavailable(
            f"No server listens at {endpoint}: it has ended, or the address is wrong."
        ) from error
    except TimeoutError as error:
        raise ServerUnavailable(_silent(endpoint, timeout_s)) from error
    except socket.gaierror as error:
        raise ConfigError(
            f"The server's machine {endpoint.host!r} is not known here ({error.strerror}): use its "
            "address, or a name that this machine can look up."
        ) from error
    except OSError as error:
        raise ServerUnavailable(
            f"The server at {endpoint} can't be reached: {error.strerror or error}."
        ) from error


def tune(sock: socket.socket) -> None:
    """What every TCP connection wants: small frames at once, room for large ones, a dead peer seen.

    The system's own sizing of the send buffer stays so small that a sender of megabytes sleeps and
    wakes for every few hundred kilobytes. Within a machine there is no congestion to control, and
    what the system does about it elsewhere (BBR waits between packets) only holds a sender up.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _ASK_EVERY_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _WITHOUT_ANSWER_S)
    if hasattr(socket, "TCP_CONGESTION") and _stays_here(sock):
        with suppress(OSError):  # the plainest of all, but a system may be built without it
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def _stays_here(sock: socket.socket) -> bool:
    here, there = sock.getsockname()[0], sock.getpeername()[0]
    return bool(here == there or ipaddress.ip_address(there).is_loopback)


def _connect_tcp(
    endpoint: Endpoint, credentials: Credentials | None, bind_host: str | None, timeout_s: float
) -> socket.socket:
    context = client_context(credentials, endpoint.host) if endpoint.encrypted else None
    deadline = time.monotonic() + timeout_s
    source = None if bind_host is None else (bind_host, 0)
    sock = socket.create_connection((endpoint.host, endpoint.port), timeout_s, source)
    try:
        _require_another(sock)
        tune(sock)
        if context is None:
            return sock
        stream = TlsStream(sock, context, server_side=False)
        stream.shake_hands(deadline)
    except BaseException:
        sock.close()
        raise
    return tunnel(stream)


def _require_another(sock: socket.socket) -> None:
    # A port where nobody listens may be drawn for this very socket, which TCP then connects to
    # itself. It would also keep the port from a server that is about to be started again there.
    if sock.getsockname() == sock.getpeername():
        raise ConnectionRefusedError("the connection led back to its own socket")


def _local_name(endpoint: Endpoint) -> str:
    if endpoint.unix is None:
        raise ConfigError(
            f"The server at {endpoint} has no local door: only one that listens on loopback has. "
            "Connect with same_machine=False."
        )
    return endpoint.unix


def _silent(endpoint: Endpoint, timeout_s: float) -> str:
    return f"The server at {endpoint} did not answer within {timeout_s:g} s."
