"""A chunk server and clients of it that speak frames over raw sockets, one byte at a time if asked.

The real client is native too; a test of the server should not depend on it.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from manyhands import _native
from manyhands.messages import HEADER_BYTES, PROTOCOL_VERSION, Encoding, Flag, Kind

Floats = npt.NDArray[np.float32]
HEADER = struct.Struct("<IHBBIIQQQfIIIQ")
MAGIC, VERSION = 0x5350484D, PROTOCOL_VERSION


@dataclass
class Reply:
    kind: Kind
    chunk: int
    client: int
    sequence: int
    seen: int
    count: int
    payload: bytes
    encoding: Encoding
    place: int

    @property
    def floats(self) -> Floats:
        return np.frombuffer(self.payload, np.float32)

    @property
    def sentence(self) -> str:
        return self.payload.decode()


def frame(
    kind: int,
    payload: bytes = b"",
    *,
    chunk: int = 0,
    client: int = 1,
    sequence: int = 0,
    seen: int = 0,
    rate: float = 1.0,
    count: int = 0,
    lease: int = 0,
    flags: int = 0,
    encoding: int = 0,
    place: int = 0,
    payload_bytes: int | None = None,
    magic: int = MAGIC,
    version: int = VERSION,
) -> bytes:
    size = len(payload) if payload_bytes is None else payload_bytes
    header = HEADER.pack(
        magic, version, kind, flags | encoding << 4, chunk, lease, client, sequence, seen, rate,
        count, 1, size, place,
    )  # fmt: skip
    return header + payload


class RawClient:
    def __init__(self, sock: socket.socket, client: int) -> None:
        self.sock = sock
        self.client = client
        self._sequence = 0
        sock.settimeout(20)

    def send(self, kind: int, payload: bytes = b"", **fields: Any) -> None:
        fields.setdefault("client", self.client)
        self.sock.sendall(frame(kind, payload, **fields))

    def ask(self, kind: int, payload: bytes = b"", **fields: Any) -> Reply:
        self.send(kind, payload, **fields)
        return self.receive()

    def push(self, chunk: int, gradient: Floats, **fields: Any) -> Reply:
        self._sequence += 1
        fields.setdefault("sequence", self._sequence)
        return self.ask(Kind.DELTA, gradient.tobytes(), chunk=chunk, **fields)

    def pull(self, chunk: int, **fields: Any) -> Floats:
        reply = self.ask(Kind.PULL, chunk=chunk, **fields)
        assert reply.kind is Kind.VALUES, reply
        return reply.floats

    def set(self, chunk: int, values: Floats, array: int = 0) -> Reply:
        return self.ask(Kind.SET, values.tobytes(), chunk=chunk, count=array)

    def receive(self) -> Reply:
        (
            magic,
            version,
            kind,
            flags,
            chunk,
            _,
            client,
            sequence,
            seen,
            _,
            count,
            _,
            size,
            place,
        ) = HEADER.unpack(self._exactly(HEADER_BYTES))
        assert (magic, version) == (MAGIC, VERSION)
        payload = self._exactly(size)
        return Reply(
            Kind(kind), chunk, client, sequence, seen, count, payload, Encoding(flags >> 4), place
        )

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            if not piece:
                raise ConnectionError("the server closed the connection")
            data += piece
        return bytes(data)

    def is_closed(self) -> bool:
        try:
            return self.sock.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.sock.close()


class Harness:
    """A server of chunks of one parameter each, and its clients."""

    def __init__(self, server: _native.ChunkServer) -> None:
        self.server = server
        self._clients: list[RawClient] = []

    def add(
        self,
        chunk: int,
        rows: int,
        row_floats: int = 1,
        *,
        rule: _native.Rule | None = None,
        start: float = 0.0,
        lane: int = 0,
        parameter: int | None = None,
        first_row: int = 0,
        lease: int = 0,
        by_rows: bool = False,
    ) -> None:
        rule = rule or _native.Rule("sgd")
        self.server.add_chunk(
            chunk, lane=lane, parameter=chunk if parameter is None else parameter,
            first_row=first_row, rows=rows, row_floats=row_floats, rule=rule,
            state_starts=[start] * rule.states, lease=lease,
            by_rows=by_rows,
        )  # fmt: skip

    def connect(self, client: int = 1, *, tcp: bool = False, **options: Any) -> RawClient:
        ours, theirs = tcp_pair() if tcp else socket.socketpair()
        options.setdefault("lane", 0)
        self._clients.append(RawClient(ours, client))
        with theirs:
            self.server.adopt(theirs.fileno(), client=client, **options)
            theirs.detach()
        return self._clients[-1]

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.server.stop()


@contextmanager
def harness(**settings: Any) -> Iterator[Harness]:
    settings.setdefault("lanes", 1)
    made = Harness(_native.ChunkServer(**settings))
    try:
        yield made
    finally:
        made.close()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    return ours, theirs


def sealed_memory(size: int, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    fd = os.memfd_create("client", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def eventually(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.002)


__all__ = [
    "Encoding", "Flag", "Floats", "Harness", "Kind", "RawClient", "Reply", "eventually", "frame",
    "harness", "sealed_memory", "tcp_pair",
]  # fmt: skip
