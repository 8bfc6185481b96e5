"""Which server serves which bucket: what a client goes by, and how it hears of changes.

A table is immutable and replaced as a whole, so that a call sees one state of the world. Without a
controller there is one table for ever; with one, a thread asks it for the newest placement and
waits at its end until there is one (Adam, section 3.3.2: clients learn from the controllers).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from manyhands.errors import ConfigError
from manyhands.parameter_server.shard_map import ShardMap
from manyhands.transport.endpoint import Endpoint


class Target(NamedTuple):
    """A server as connections know it: a restarted one is another."""

    server: int
    incarnation: str
    endpoint: Endpoint


class Route(NamedTuple):
    """The primary of a bucket, and the lease under which it is."""

    target: Target
    lease: int


@dataclass(frozen=True, slots=True)
class RouteTable:
    """The routes of all buckets at one moment; `version` rises with every change."""

    version: int
    routes: Mapping[int, Route] = field(repr=False)

    def of(self, bucket: int) -> Route | None:
        """The route of a bucket; None while nobody serves it."""
        return self.routes.get(bucket)


Listener = Callable[[RouteTable], None]


class Routes(Protocol):
    """Where the buckets are. Thread-safe; listeners are called from a thread of its own."""

    @property
    def table(self) -> RouteTable:
        """The newest table."""
        ...

    @property
    def may_change(self) -> bool:
        """Whether waiting for another table is of any use."""
        ...

    def wait_newer(self, version: int, timeout_s: float) -> bool:
        """Wait for a table above this version; whether it came."""
        ...

    def listen(self, listener: Listener) -> None:
        """Call this with every new table, once it is `table`."""
        ...

    def start(self) -> None:
        """Have a table, waiting for the first."""
        ...

    def close(self) -> None:
        """End the thread, if there is one. May be called twice."""
        ...


class StaticRoutes:
    """Every bucket stays at the server that the shard map names, without leases."""

    may_change = False

    def __init__(self, shard_map: ShardMap, endpoints: Sequence[Endpoint]) -> None:
        if len(endpoints) != shard_map.servers:
            raise ConfigError(
                f"{len(endpoints)} addresses for the {shard_map.servers} servers of the shard "
                "map: give one for each."
            )
        targets = [Target(number, "", endpoint) for number, endpoint in enumerate(endpoints)]
        self.table = RouteTable(
            0,
            {
                bucket: Route(targets[server], lease=0)
                for bucket, server in enumerate(shard_map.bucket_servers)
            },
        )

    def wait_newer(self, version: int, timeout_s: float) -> bool:
        return False

    def listen(self, listener: Listener) -> None:
        """There is nothing to hear."""

    def start(self) -> None:
        """Everything is known already."""

    def close(self) -> None:
        """There is nothing to end."""


class ChangingRoutes:
    """A table that is replaced, and those who wait for it. Thread-safe."""

    may_change = True

    def __init__(self) -> None:
        self._table = RouteTable(-1, {})
        self._changed = threading.Condition()
        self._listeners: list[Listener] = []

    @property
    def table(self) -> RouteTable:
        return self._table

    def replace(self, table: RouteTable) -> bool:
        """Take a table if it is newer; then tell everybody."""
        with self._changed:
            if table.version <= self._table.version:
                return False
            self._table = table
            self._changed.notify_all()
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener(table)
        return True

    def wait_newer(self, version: int, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._table.version > version, timeout_s)

    def listen(self, listener: Listener) -> None:
        with self._changed:
            self._listeners.append(listener)
