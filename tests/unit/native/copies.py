"""Several chunk servers in one process, joined by socket pairs as the servers of a run are.

And what plays one of them: a copy or a primary that does what the test says.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from raw_client import Floats, Kind, RawClient, Reply, eventually

from manyhands import _native
from manyhands.messages import Refusal

HEAD = struct.Struct("<QQIIQII")
SIZE = 50  # numbers of a small chunk
ONES = np.ones(SIZE, np.float32)


@dataclass(frozen=True)
class Snapshot:
    """What native/server/snapshot.h describes."""

    version: int
    begun: int
    last_lease: int
    arrays: Floats
    log: dict[int, int]

    @classmethod
    def read(cls, data: bytes) -> Snapshot:
        version, begun, last_lease, arrays, floats, clients, zero = HEAD.unpack_from(data)
        assert zero == 0
        numbers = np.frombuffer(data, np.float32, arrays * floats, HEAD.size)
        log = np.frombuffer(data, np.uint64, 2 * clients, HEAD.size + numbers.nbytes)
        assert HEAD.size + numbers.nbytes + log.nbytes == len(data)
        pairs = dict(log.reshape(-1, 2).tolist())
        return cls(version, begun, last_lease, numbers.reshape(arrays, floats), pairs)


class Copies:
    """Servers 0, 1, ... that all know the same chunks; which is a chunk's primary is up to hold."""

    def __init__(self, servers: int = 3, lanes: int = 1, **settings: Any) -> None:
        self.settings = {"lanes": lanes, "pin": False, "replicated": True, **settings}
        self.lanes = lanes
        self.chunks: list[dict[str, Any]] = []
        self.servers = [_native.ChunkServer(**self.settings) for _ in range(servers)]
        self._clients: list[RawClient] = []

    def add(
        self,
        chunk: int,
        rows: int,
        row_floats: int = 1,
        *,
        rule: _native.Rule | None = None,
        parameter: int | None = None,
        first_row: int = 0,
        lane: int = 0,
        start: float = 0.0,
        by_rows: bool = False,
    ) -> None:
        rule = rule or _native.Rule("sgd")
        self.chunks.append(
            {
                "chunk": chunk, "lane": lane, "first_row": first_row, "rows": rows,
                "parameter": chunk if parameter is None else parameter, "row_floats": row_floats,
                "rule": rule, "state_starts": [start] * rule.states, "by_rows": by_rows,
            }
        )  # fmt: skip

    @property
    def numbers(self) -> list[int]:
        return [chunk["chunk"] for chunk in self.chunks]

    def start(self) -> None:
        for server in self.servers:
            self._start(server)

    def _start(self, server: _native.ChunkServer) -> None:
        for chunk in self.chunks:
            server.add_chunk(**chunk)
        server.start()

    def restart(self, server: int) -> None:
        """An empty one takes the place of one that died."""
        self.servers[server].stop()
        self.servers[server] = _native.ChunkServer(**self.settings)
        self._start(self.servers[server])

    def join(self, primary: int, *copies: int) -> None:
        """Connections over which `primary` sends to `copies`."""
        for copy in copies:
            for lane in range(self.lanes):
                ours, theirs = socket.socketpair()
                self.servers[copy].adopt(theirs.detach(), lane=lane, client=0, peer=primary)
                self.servers[primary].adopt_peer(ours.detach(), lane=lane, peer=copy)

    def hold(
        self,
        primary: int,
        mirrors: Sequence[int] = (),
        *,
        lease: int = 1,
        joining: Sequence[tuple[int, int]] = (),
        chunks: Sequence[int] | None = None,
        tell: Sequence[int] | None = None,
    ) -> None:
        """Give the roles of a placement to every server, or to those that `tell` names."""
        which = self.numbers if chunks is None else chunks
        for number, server in enumerate(self.servers):
            if tell is not None and number not in tell:
                continue
            if number == primary:
                server.hold(which, role="primary", lease=lease, mirrors=mirrors, joining=joining)
            elif number in mirrors or any(number == peer for peer, _ in joining):
                server.hold(which, role="mirror", lease=lease)

    def serve(self, **hold: Any) -> None:
        """The usual beginning: server 0 is the primary, all others are its mirrors."""
        self.start()
        others = range(1, len(self.servers))
        self.join(0, *others)
        self.hold(0, tuple(others), **hold)

    def connect(self, server: int, client: int = 1, *, lane: int = 0, **options: Any) -> RawClient:
        ours, theirs = socket.socketpair()
        self._clients.append(RawClient(ours, client))
        self.servers[server].adopt(theirs.detach(), lane=lane, client=client, **options)
        return self._clients[-1]

    def keep(self, client: RawClient) -> None:
        """Close it at the end."""
        self._clients.append(client)

    def snapshot(self, server: int, chunk: int = 0) -> Snapshot | None:
        data = self.servers[server].collect(chunk)
        return None if data is None else Snapshot.read(data)

    def version(self, server: int, chunk: int = 0) -> int:
        found = self.snapshot(server, chunk)
        return -1 if found is None else found.version

    def assert_equal(self, *servers: int) -> None:
        """Every copy is the same to the bit: weights, states, versions, logs."""
        which = servers or tuple(range(len(self.servers)))
        for chunk in self.numbers:
            first = self.servers[which[0]].collect(chunk)
            assert first is not None
            for other in which[1:]:
                eventually(lambda o=other, f=first, c=chunk: self.servers[o].collect(c) == f)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for server in self.servers:
            server.stop()


@contextmanager
def copies(servers: int = 3, **settings: Any) -> Iterator[Copies]:
    made = Copies(servers, **settings)
    try:
        yield made
    finally:
        made.close()


def silent(client: RawClient, for_s: float = 0.1) -> bool:
    """Nothing is answered, however long one waits; this is how long the test does."""
    client.sock.settimeout(for_s)
    try:
        return client.sock.recv(1, socket.MSG_PEEK) == b"never"
    except TimeoutError:
        return True
    finally:
        client.sock.settimeout(20)


def push_in_vain(client: RawClient, sequence: int, chunk: int = 0) -> None:
    client.send(Kind.DELTA, ONES.tobytes(), chunk=chunk, sequence=sequence)


def total(reply_or_values: Floats) -> float:
    return -float(reply_or_values[0])


class FakeCopy(RawClient):
    """The other end of a connection that a primary sends to, answering as the test says."""

    def __init__(self, c: Copies, primary: int, peer: int) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(ours, 0)
        c.servers[primary].adopt_peer(theirs.detach(), lane=0, peer=peer)
        self.expect(Kind.SHARE)
        self.answer(count=0)  # it is on another machine

    def expect(self, kind: Kind) -> None:
        assert self.receive().kind is kind

    def answer(self, *, kind: Kind = Kind.ACK, payload: bytes = b"", **fields: int) -> None:
        self.send(kind, payload, **fields)


class FakePrimary(RawClient):
    """A server that says what it likes to the copies of another."""

    def __init__(self, c: Copies, copy: int, peer: int) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(ours, 0)
        c.servers[copy].adopt(theirs.detach(), lane=0, client=0, peer=peer)
        c.keep(self)


def one_chunk(c: Copies) -> Copies:
    c.add(0, SIZE)
    c.serve()
    return c


def refused_as_stale(reply: Reply) -> bool:
    return (reply.kind, reply.count) == (Kind.REFUSED, Refusal.STALE_LEASE)


__all__ = [
    "ONES", "SIZE", "Copies", "FakeCopy", "FakePrimary", "Snapshot", "copies", "one_chunk",
    "push_in_vain", "refused_as_stale", "silent", "total",
]  # fmt: skip
