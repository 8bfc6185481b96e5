"""Several chunk servers in one process, joined by socket pairs as the servers of a run are."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from raw_client import Floats, RawClient, eventually

from manyhands import _native

HEAD = struct.Struct("<QQIIQII")


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
    ) -> None:
        rule = rule or _native.Rule("sgd")
        self.chunks.append(
            {
                "chunk": chunk, "lane": lane, "first_row": first_row, "rows": rows,
                "parameter": chunk if parameter is None else parameter, "row_floats": row_floats,
                "rule": rule, "state_starts": [start] * rule.states,
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


__all__ = ["Copies", "Snapshot", "copies"]
