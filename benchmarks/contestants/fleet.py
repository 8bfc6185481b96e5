"""A controller and servers with copies, as processes that may be killed, stopped and cut off.

What a driver does for a run, without the training: starts the roles, hears their reports and starts
those again that died.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sqlite3
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from manyhands import optim
from manyhands.controller.bulletin import unpacked
from manyhands.controller.settings import ControllerSettings
from manyhands.controller.task import ControllerServing, ControllerTask, buckets_of
from manyhands.errors import ManyhandsError
from manyhands.launch.local import Role, close_all, start_role
from manyhands.optim.native import rule_spec
from manyhands.parameter_server.client.parameter_client import ParameterClient
from manyhands.parameter_server.client.routes import ControllerRoutes
from manyhands.parameter_server.placement import Placement
from manyhands.parameter_server.reports import ServerReport
from manyhands.parameter_server.server import ServerSettings
from manyhands.parameter_server.server_task import Cut, ParameterServerTask, Serving
from manyhands.parameter_server.shard_map import ParameterSpec, ShardMap, make_shard_map
from manyhands.transport.calls import Caller
from manyhands.transport.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class Access:
    """What a client's process needs to take part."""

    shards: ShardMap
    controller: Endpoint
    token: str

    def client(self, **options: Any) -> ParameterClient:
        routes = ControllerRoutes(self.controller, token=self.token)
        return ParameterClient(self.shards, routes, token=self.token, **options)


class Fleet:
    """The processes. A context manager that ends them. Used by one thread.

    A thread of its own hears the servers; what it writes (`servers`, `serving`, `reports`) are
    single entries of dictionaries, which need no lock.
    """

    def __init__(
        self,
        parameters: Sequence[ParameterSpec],
        *,
        servers: int,
        copies: int,
        lanes: int = 1,
        chunk_bytes: int = 1 << 20,
        fixed_rate: float = 1.0,
    ) -> None:
        self.copies = copies
        self.shards = make_shard_map(
            parameters, servers=servers, lanes=lanes, chunk_bytes=chunk_bytes
        )
        self.servers: dict[int, Role] = {}  # those that serve
        self.serving: dict[int, Serving] = {}
        self.reports: dict[int, ServerReport] = {}
        self.controller: Role | None = None
        self._starting: dict[int, Role] = {}
        self._rule = rule_spec(optim.SGD(lr=fixed_rate))
        self._token = secrets.token_hex(16)
        self._endpoint: Endpoint | None = None
        self._folder = TemporaryDirectory()
        self._registry = Path(self._folder.name) / "registry.db"
        self._listening = threading.Event()
        self._channels: dict[Connection, int] = {}
        self._listener = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Fleet:
        try:
            self.start_controller()
            self._listening.set()
            self._listener.start()
            for server in range(self.shards.servers):
                self.launch(server)
            self.wait_for_servers()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def access(self) -> Access:
        assert self._endpoint is not None
        return Access(self.shards, self._endpoint, self._token)

    def start_controller(self) -> None:
        """Start it, on the port of its predecessor if there was one."""
        task = ControllerTask(
            registry=f"sqlite:{self._registry}",
            settings=ControllerSettings(servers=self.shards.servers, copies=self.copies),
            buckets=buckets_of(self.shards),
            token=self._token,
            port=self._endpoint.port if self._endpoint else 0,
        )
        self.controller = start_role(task, name="controller")
        serving = self.controller.receive()
        assert isinstance(serving, ControllerServing), serving
        self._endpoint = serving.endpoint

    def launch(self, server: int) -> None:
        """Start a server's process; it is in `servers` as soon as it serves."""
        task = ParameterServerTask(
            self.shards,
            server,
            [self._rule] * len(self.shards.parameters),
            ServerSettings(pin=False),
            self._token,
            controller=self._endpoint,
            machine=f"machine {server}",
        )
        role = start_role(task, name=f"server {server}")
        self._starting[server] = role
        self._channels[role.channel] = server

    def all_serve(self) -> bool:
        """Whether no server is still on its way."""
        return len(self.servers) == self.shards.servers

    def wait_for_servers(self, within_s: float = 60.0) -> None:
        """Wait until all servers serve."""
        deadline = time.monotonic() + within_s
        while not self.all_serve():
            time.sleep(0.01)
            if time.monotonic() > deadline:
                raise RuntimeError(f"Only servers {sorted(self.servers)} started in time.")

    def signal(self, server: int, number: signal.Signals) -> None:
        os.kill(self.servers[server].pid, number)

    def kill(self, server: int) -> None:
        """SIGKILL; returns when the process is gone."""
        role = self.servers.pop(server)
        self.reports.pop(server, None)
        self._channels.pop(role.channel, None)
        role.kill()
        role.channel.close()

    def kill_controller(self) -> None:
        assert self.controller is not None
        self.controller.kill()
        self.controller.channel.close()
        self.controller = None

    def tell_dead(self, server: int) -> None:
        """What a driver tells the controller of a process that it saw end, if it is there."""
        incarnation = self.serving[server].incarnation
        with (
            contextlib.suppress(ManyhandsError),
            Caller(self.access.controller, token=self._token) as caller,
        ):
            caller.call("dead", 1.0, server=server, incarnation=incarnation)

    def cut(self, one: int, other: int | None, on: bool) -> None:
        """Cut a server off from another, or from the controller (None), or no longer."""
        for server, peer in ((one, other), (other, one)):
            if server is not None and server in self.servers:
                self.servers[server].send(Cut(peer, on))

    def placement(self) -> Placement | None:
        """The one that is committed, read beside the controller; None where there is none.

        None too where it can't be read now: a controller that is stopped may hold a lock.
        """
        where = f"file:{self._registry}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(where, uri=True, timeout=1.0)) as registry:
                found = registry.execute("SELECT value FROM entries WHERE key = 'placement'")
                row = found.fetchone()
        except sqlite3.OperationalError:
            return None
        return None if row is None or row[0] is None else unpacked(row[0])

    def is_whole(self) -> bool:
        """Whether every bucket has all its copies in step, on processes that run."""
        placement = self.placement()
        return placement is not None and all(
            len(self.living_copies(placement, bucket)) >= self.copies
            for bucket in placement.buckets
        )

    def living_copies(self, placement: Placement, bucket: int) -> set[int]:
        """The servers with everything of a bucket: primary and mirrors whose processes run."""
        place = placement.buckets[bucket]
        holders = {*place.mirrors, *(() if place.primary is None else (place.primary,))}
        return {
            server
            for server in holders & self.servers.keys()
            if placement.names(server, self.serving[server].incarnation)
        }

    @property
    def lost_buckets(self) -> int:
        """Buckets without any copy, by the servers' last reports."""
        return sum(self.reports[s].lost_buckets for s in list(self.servers) if s in self.reports)

    def close(self) -> None:
        self._listening.clear()
        if self._listener.is_alive():
            self._listener.join()
        roles = [*self.servers.values(), *self._starting.values()]
        roles += [self.controller] if self.controller else []
        for role in roles:
            if role.poll() is None:
                os.kill(role.pid, signal.SIGCONT)
        close_all(roles)
        self._folder.cleanup()

    def _listen(self) -> None:
        """Hear reports: a server whose driver does not listen would come to a halt."""
        while self._listening.is_set():
            for channel in wait(list(self._channels), timeout=0.1):
                assert isinstance(channel, Connection)
                server = self._channels.get(channel)
                try:
                    message = channel.recv()
                except (EOFError, OSError):
                    self._channels.pop(channel, None)
                    continue
                if server is None:
                    continue
                if isinstance(message, Serving):
                    self.serving[server] = message
                    self.servers[server] = self._starting.pop(server)
                elif isinstance(message, ServerReport):
                    self.reports[server] = message
