"""Which server serves which bucket: what a client goes by, and how it hears of changes.

A table is immutable and replaced as a whole, so that a call sees one state of the world. Without a
controller there is one table for ever; with one, a thread asks it for the newest placement and
waits at its end until there is one (Adam, section 3.3.3: clients learn from the controllers).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from manyhands.errors import ConfigError, ManyhandsError, ProtocolError, ServerUnavailable
from manyhands.parameter_server.placement import Placement
from manyhands.parameter_server.shard_map import ShardMap
from manyhands.transport.calls import Caller
from manyhands.transport.certificates import Credentials
from manyhands.transport.endpoint import Endpoint

logger = logging.getLogger(__name__)

_POLL_S = 1.0  # the controller keeps a question so long when there is nothing new
_GRACE_S = 2.0
_PAUSE_S = 0.1  # between questions to a controller that is away


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


def table_of(placement: Placement) -> RouteTable:
    """The routes that a placement means for clients."""
    targets = {
        server: Target(server, member.incarnation, member.endpoint)
        for server, member in placement.members.items()
    }
    return RouteTable(
        placement.version,
        {
            bucket: Route(targets[place.primary], place.lease)
            for bucket, place in placement.buckets.items()
            if place.primary is not None and place.primary in targets
        },
    )


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

    def start(self, stopping: threading.Event, within_s: float) -> None:
        """Have a table, waiting for the first; ServerUnavailable if none comes in time."""
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

    def start(self, stopping: threading.Event, within_s: float) -> None:
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


class ControllerRoutes(ChangingRoutes):
    """The placement that the controller published last, asked for by a thread.

    While the controller is away the last table stays: servers serve without it. Started and closed
    by the client that it is given to.
    """

    def __init__(
        self,
        controller: Endpoint,
        *,
        token: str,
        credentials: Credentials | None = None,
        purpose: str = "",
    ) -> None:
        super().__init__()
        self.placement: Placement | None = None
        self._caller = Caller(controller, token=token, credentials=credentials, purpose=purpose)
        self._closed = threading.Event()
        self._error: ManyhandsError | None = None  # of the last question
        self._thread = threading.Thread(target=self._ask_always, name="routes", daemon=True)

    def start(self, stopping: threading.Event, within_s: float) -> None:
        if self._thread.ident is None:
            self._thread.start()
        deadline = time.monotonic() + within_s
        while not self.wait_newer(-1, _PAUSE_S):
            error = self._error
            if isinstance(error, (ConfigError, ProtocolError)):
                raise error  # we are not let in: asking again will not help
            if stopping.is_set() or time.monotonic() >= deadline:
                raise self._unavailable(within_s, error)

    def close(self) -> None:
        """End the thread; may be called twice, not by a listener."""
        self._closed.set()
        self._caller.close()
        if self._thread.is_alive():
            self._thread.join()

    def _ask_always(self) -> None:
        while not self._closed.is_set():
            try:
                self._ask()
                self._error = None
            except ManyhandsError as error:
                if self._error is None and not self._closed.is_set():
                    logger.info("The controller does not answer: %s", error)
                self._error = error
                self._closed.wait(_PAUSE_S)

    def _ask(self) -> None:
        answer = self._caller.call(
            "placement", _POLL_S + _GRACE_S, after=self.table.version, wait_s=_POLL_S
        )
        if not isinstance(answer, dict) or "placement" not in answer:
            raise ProtocolError("The controller did not answer with a placement.")
        if answer["placement"] is None:
            return
        placement = Placement.from_json(answer["placement"])
        if placement.version > self.table.version:
            self.placement = placement
            self.replace(table_of(placement))

    def _unavailable(self, within_s: float, error: ManyhandsError | None) -> ServerUnavailable:
        return ServerUnavailable(
            f"The controller at {self._caller.endpoint} has not said within {within_s:g} s where "
            f"the servers are: see whether its process and theirs run. "
            f"{error or 'It answers, and has placed nothing yet.'}"
        )
