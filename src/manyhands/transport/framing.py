"""Greeting frames on a plain socket: whole or not at all, by a deadline, within a limit.

Used before the native ends take a connection over. Reads take exactly a frame's bytes, because
what follows belongs to the native end.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from manyhands.errors import ProtocolError
from manyhands.messages import HEADER_BYTES, Header, Refusal

_MOST_FDS = 1


@dataclass(frozen=True, slots=True)
class Frame:
    """What one peer said, and the descriptors that came along (owned by whoever has this)."""

    header: Header
    payload: bytes
    fds: tuple[int, ...] = ()


class VersionMismatch(ProtocolError):
    """The peer speaks another version; `version` is the one in which to tell it so."""

    def __init__(self, message: str, version: int) -> None:
        super().__init__(message, refusal=Refusal.VERSION)
        self.version = version


class NotOurs(ProtocolError):
    """What came is no frame at all: a scanner, a browser. Not worth an answer."""


def read_frame(sock: socket.socket, *, limit_bytes: int, deadline: float) -> Frame:
    """The next frame. ProtocolError when it is none of ours, TimeoutError at the deadline,
    ConnectionError when the peer leaves first."""
    head, fds = _read_head(sock, deadline)
    try:
        header = _checked_header(head)
        if header.payload_bytes > limit_bytes:
            raise ProtocolError(
                f"The greeting is {header.payload_bytes} bytes long; {limit_bytes} are allowed.",
                refusal=Refusal.TOO_LARGE,
            )
        payload = _read(sock, header.payload_bytes, deadline)
    except BaseException:
        close_fds(fds)
        raise
    return Frame(header, payload, fds)


def send_frame(
    sock: socket.socket, data: bytes, *, deadline: float, fds: Sequence[int] = ()
) -> None:
    """Send a whole frame, and descriptors along with its first byte (local sockets only)."""
    sent = 0
    if fds:
        sock.settimeout(_time_left_s(deadline))
        sent = socket.send_fds(sock, [data], list(fds))
    view = memoryview(data)
    while sent < len(data):
        sock.settimeout(_time_left_s(deadline))
        sent += sock.send(view[sent:])


def close_fds(fds: Sequence[int]) -> None:
    """Close descriptors that nobody wants."""
    for fd in fds:
        os.close(fd)


def _read_head(sock: socket.socket, deadline: float) -> tuple[bytes, tuple[int, ...]]:
    if sock.family != socket.AF_UNIX:
        return _read(sock, HEADER_BYTES, deadline), ()
    sock.settimeout(_time_left_s(deadline))
    head, received, flags, _ = socket.recv_fds(
        sock, HEADER_BYTES, _MOST_FDS, socket.MSG_CMSG_CLOEXEC
    )
    fds = tuple(received)
    try:
        if flags & socket.MSG_CTRUNC:
            raise ProtocolError(f"More than {_MOST_FDS} descriptor came with the greeting.")
        if not head:
            raise ConnectionResetError("The peer said nothing.")
        return head + _read(sock, HEADER_BYTES - len(head), deadline), fds
    except BaseException:
        close_fds(fds)
        raise


def _read(sock: socket.socket, count: int, deadline: float) -> bytes:
    data = bytearray(count)
    view = memoryview(data)
    read = 0
    while read < count:
        sock.settimeout(_time_left_s(deadline))
        piece = sock.recv_into(view[read:])
        if piece == 0:
            raise ConnectionResetError("The peer left in the middle of its greeting.")
        read += piece
    return bytes(data)


def _checked_header(head: bytes) -> Header:
    try:
        return Header.unpack(head)
    except ProtocolError as error:
        if error.refusal == Refusal.VERSION:
            raise VersionMismatch(str(error), int.from_bytes(head[4:6], "little")) from None
        if not head.startswith(b"MHPS"):
            raise NotOurs(str(error)) from None
        raise


def _time_left_s(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("The peer took too long over its greeting.")
    return left
