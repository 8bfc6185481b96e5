"""Local sockets that need no file: they are gone with their process, however it ends.

Names are abstract (Linux): they belong to the network namespace, not to a file system, so that a
killed run leaves nothing behind and no path is too long. Anybody may connect to one, hence both
ends look at whose process the other is before a byte is read.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import sys

from manyhands.errors import ProtocolError

AVAILABLE = sys.platform == "linux"
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_TIME = struct.Struct("@ll")  # seconds, microseconds


def listen_unix(backlog: int) -> tuple[socket.socket, str]:
    """A listening socket and its name, which nobody can guess or have taken before."""
    name = f"manyhands-{secrets.token_hex(16)}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(f"\0{name}")
        listening.listen(backlog)
    except BaseException:
        listening.close()
        raise
    return listening, name


def connect_unix(name: str, timeout_s: float) -> socket.socket:
    """A connection to the process that listens under this name; OSError when there is none,
    TimeoutError when it takes nobody in for so long."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _connect(sock, name, timeout_s)
        require_same_user(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _connect(sock: socket.socket, name: str, timeout_s: float) -> None:
    # Python's own timeout would fail at once where the server's queue is full: the kernel waits
    # for a place only in a blocking call.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout_s))
    try:
        sock.connect(f"\0{name}")
    except BlockingIOError:
        raise TimeoutError("The server's queue stayed full.") from None
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(0.0))
    sock.settimeout(timeout_s)


def _timeval(seconds: float) -> bytes:
    return _TIME.pack(int(seconds), int(seconds % 1 * 1e6))


def require_same_user(sock: socket.socket) -> None:
    """ProtocolError unless the process at the other end belongs to this process's user."""
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(found)
    if uid != os.geteuid():
        raise ProtocolError(f"The local peer belongs to user {uid} and not to {os.geteuid()}.")
