"""Servers with copies of each other's chunks, in processes of their own, to kill and stop."""

from __future__ import annotations

import os
import secrets
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from manyhands import optim
from manyhands.launch.local import Role, close_all, start_role
from manyhands.optim.native import rule_spec
from manyhands.parameter_server.client.parameter_client import ParameterClient
from manyhands.parameter_server.client.routes import ControllerRoutes
from manyhands.parameter_server.placement import BucketPlace, Joining
from manyhands.parameter_server.reports import ServerReport
from manyhands.parameter_server.server import ServerSettings
from manyhands.parameter_server.server_task import ParameterServerTask, Serving
from manyhands.parameter_server.shard_map import ParameterSpec, ShardMap, make_shard_map
from manyhands.transport.certificates import RunCertificates
from manyhands.transport.endpoint import Endpoint
from tests.cluster.conftest import wait_until
from tests.cluster.scripted_controller import ScriptedController

PARAMETERS = (
    ParameterSpec("large", (300, 500)),
    ParameterSpec("small", (3, 7)),
    ParameterSpec("bias", (401,)),
)


@dataclass
class ReplicatedServers:
    """Servers that hear a controller, and what a client needs to reach them."""

    shards: ShardMap
    token: str
    controller: Endpoint
    certificates: RunCertificates | None
    rule: optim.Rule
    settings: dict[str, Any]
    task: dict[str, Any] = field(default_factory=dict)
    roles: dict[int, Role] = field(default_factory=dict)
    serving: dict[int, Serving] = field(default_factory=dict)

    def start(self, *servers: int) -> None:
        """Start these, again if they are gone, and wait until they serve."""
        certificates = self.certificates
        for server in servers:
            task = ParameterServerTask(
                self.shards,
                server,
                [rule_spec(self.rule)] * len(self.shards.parameters),
                ServerSettings(tls=certificates is not None, **self.settings),
                self.token,
                certificates.server if certificates else None,
                certificates.client if certificates else None,
                self.controller,
                **self.task,
            )
            self.roles[server] = start_role(task, name=f"server {server}")
        for server in servers:
            serving = self.roles[server].receive()
            assert isinstance(serving, Serving), serving
            self.serving[server] = serving

    def kill(self, server: int) -> None:
        os.kill(self.roles[server].pid, signal.SIGKILL)
        self.roles[server].close()

    def pause(self, server: int) -> None:
        os.kill(self.roles[server].pid, signal.SIGSTOP)

    def go_on(self, server: int) -> None:
        os.kill(self.roles[server].pid, signal.SIGCONT)

    def report(self, server: int) -> ServerReport:
        """The newest report."""
        role = self.roles[server]
        message = role.receive()
        while role.channel.poll():
            message = role.receive()
        assert isinstance(message, ServerReport), message
        return message

    def client(self, **options: Any) -> ParameterClient:
        """A client that asks the controller where the buckets are."""
        access = {
            "token": self.token,
            "credentials": self.certificates.client if self.certificates else None,
        }
        routes = ControllerRoutes(self.controller, **access)
        return ParameterClient(self.shards, routes, **access, **options)

    def flat(self, value: float = 0.0) -> np.ndarray:
        """An array with the layout of the map: this value where a parameter is."""
        flat = np.zeros(self.shards.floats, np.float32)
        for chunk in self.shards.chunks:
            flat[chunk.start : chunk.start + chunk.floats] = value
        return flat

    def weights(self, **options: Any) -> np.ndarray:
        """All weights as clients see them now."""
        out = self.flat()
        with self.client(purpose="test looks", **options) as client:
            client.pull(out)
        return out

    def close(self) -> None:
        for server in self.roles:
            if self.roles[server].poll() is None:
                self.go_on(server)
        close_all(list(self.roles.values()))


@contextmanager
def replicated(
    servers: int,
    *,
    lanes: int = 2,
    parameters: Sequence[ParameterSpec] = PARAMETERS,
    chunk_bytes: int = 1 << 16,
    encrypted: bool = False,
    start: Sequence[int] | None = None,
    rule: optim.Rule | None = None,
    **settings: Any,
) -> Iterator[tuple[ReplicatedServers, ScriptedController]]:
    """Servers under a scripted controller, which has heard of them and placed nothing yet."""
    shards = make_shard_map(parameters, servers=servers, lanes=lanes, chunk_bytes=chunk_bytes)
    token = secrets.token_hex(16)
    certificates = RunCertificates.make() if encrypted else None
    with ScriptedController(token, certificates=certificates) as controller:
        running = ReplicatedServers(
            shards,
            token,
            controller.endpoint,
            certificates,
            rule or optim.SGD(lr=1.0),
            settings,
        )
        try:
            numbers = range(servers) if start is None else start
            running.start(*numbers)
            controller.wait_for_servers(*numbers)
            yield running, controller
        finally:
            running.close()


def placed(
    shards: ShardMap, primary: int, mirrors: Sequence[int] = (), joining: Sequence[int] = ()
) -> dict[int, BucketPlace]:
    """Every bucket with these copies, under the first lease of the first placement."""
    entries = tuple(Joining(server, 1) for server in joining)
    place = BucketPlace(primary, 1, tuple(mirrors), entries)
    return {chunk.bucket: place for chunk in shards.chunks}


class Pushers:
    """Threads that push whole numbers until told to stop, and count what was acknowledged."""

    def __init__(self, running: ReplicatedServers, clients: Sequence[ParameterClient]) -> None:
        self._running = running
        self._clients = clients
        self._stop = threading.Event()
        self.acknowledged = [0] * len(clients)
        self.failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._push, args=(number,), daemon=True)
            for number in range(len(clients))
        ]

    def __enter__(self) -> Pushers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Let every push that is under way end well."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads), "a push never ended"
        assert not self.failures, self.failures

    def expected(self) -> np.ndarray:
        """The weights after all that was acknowledged, each push applied once."""
        total = sum((n + 1) * count for n, count in enumerate(self.acknowledged))
        return self._running.flat(-float(total))

    def wait_for_more(self, pushes: int = 3) -> None:
        """Wait until every client has had so many more acknowledged."""
        before = list(self.acknowledged)
        wait_until(
            lambda: (
                bool(self.failures)
                or all(
                    now >= then + pushes
                    for now, then in zip(self.acknowledged, before, strict=True)
                )
            ),
            what=f"{pushes} more pushes of every client",
        )
        assert not self.failures, self.failures

    def _push(self, number: int) -> None:
        client, values = self._clients[number], self._running.flat(number + 1)
        try:
            while not self._stop.is_set():
                for server in client.servers:
                    server.push(values, rate=1.0, steps=1)
                self.acknowledged[number] += 1
        except BaseException as error:
            self.failures.append(error)
