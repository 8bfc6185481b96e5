"""Replicated servers in processes, placed by a test's word, and a client that follows it."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

from manyhands import optim
from manyhands.launch.local import Role, close_all, start_role
from manyhands.optim.native import rule_spec
from manyhands.parameter_server.client import ParameterClient
from manyhands.parameter_server.placement import BucketPlace
from manyhands.parameter_server.reports import ServerReport
from manyhands.parameter_server.routes import ControllerRoutes
from manyhands.parameter_server.server import ParameterServerTask, ServerSettings
from manyhands.parameter_server.shard_map import ParameterSpec, ShardMap, make_shard_map
from tests.cluster.conftest import wait_until
from tests.cluster.servers import shared_arrays
from tests.scripted_controller import ScriptedController, placed

PARAMETERS = (
    ParameterSpec("large", (700, 500)),
    ParameterSpec("small", (3, 7)),
    ParameterSpec("bias", (401,)),
)


@dataclass
class Routed:
    """Servers that run, and the controller that a test speaks through."""

    shards: ShardMap
    controller: ScriptedController
    token: str
    roles: list[Role] = field(default_factory=list)
    version: int = 0

    def place(self, otherwise: BucketPlace, places: dict[int, BucketPlace] | None = None) -> None:
        """Publish that all buckets are like this, but for those given."""
        self.version += 1
        members = [self.controller.member(server) for server in range(len(self.roles))]
        self.controller.publish(placed(self.shards, self.version, members, places or {}, otherwise))

    def await_known(self, *servers: int) -> None:
        """Wait until these servers say that they know the newest placement."""
        beats = self.controller.beats
        wait_until(
            lambda: all(beats[server]["known"] >= self.version for server in servers),
            what="the servers know the placement",
        )

    def client(self, **options: Any) -> ParameterClient:
        """A client that gives up only after very long, unless told otherwise."""
        routes = ControllerRoutes(self.controller.endpoint, token=self.token)
        settings = {"token": self.token, "retry_s": 600.0, "timeout_s": 600.0} | options
        return ParameterClient(self.shards, routes, **settings)

    def process(self, server: int) -> psutil.Process:
        return psutil.Process(self.roles[server].pid)

    def weights(self, **options: Any) -> np.ndarray:
        """All weights as the primaries hold them."""
        out = np.zeros(self.shards.floats, np.float32)
        with self.client(purpose="test looks", **options) as client:
            client.pull(out)
        return out

    def assert_sum(self, total: int, **options: Any) -> None:
        """Every float was moved down by so much."""
        used = np.zeros(self.shards.floats, bool)
        for chunk in self.shards.chunks:
            used[chunk.start : chunk.start + chunk.floats] = True
        np.testing.assert_array_equal(self.weights(**options), np.where(used, -total, 0))

    def refusals(self, server: int) -> int:
        """Stale leases that a server has refused, by its newest report."""
        report = None
        while self.roles[server].channel.poll(0 if report else 30):
            report = self.roles[server].receive()
        assert isinstance(report, ServerReport), report
        return report.refused.get("stale_lease", 0)


@contextmanager
def routed(servers: int, *, lanes: int = 1, chunk_bytes: int = 1 << 18) -> Iterator[Routed]:
    """Servers that apply `w -= rate * gradient` and hold nothing until they are told."""
    shards = make_shard_map(PARAMETERS, servers=servers, lanes=lanes, chunk_bytes=chunk_bytes)
    token = secrets.token_hex(16)
    rules = [rule_spec(optim.SGD(lr=1.0))] * len(PARAMETERS)
    with ScriptedController(token=token) as controller:
        running = Routed(shards, controller, token)
        try:
            for server in range(servers):
                task = ParameterServerTask(
                    shards,
                    server,
                    rules,
                    ServerSettings(),
                    token,
                    controller=controller.endpoint,
                )
                running.roles.append(start_role(task, name=f"server {server}"))
            yield running
        finally:
            for role in running.roles:
                if role.poll() is None:
                    psutil.Process(role.pid).resume()
            close_all(running.roles)


class Pusher:
    """A thread for each group that pushes ones until it is told to stop; counts what it did."""

    def __init__(self, running: Routed, *, same_machine: bool = False) -> None:
        self._running = running
        self._same_machine = same_machine
        self._stop = threading.Event()
        self._ends = ExitStack()
        self.errors: list[BaseException] = []

    def __enter__(self) -> Pusher:
        shards, options = self._running.shards, {}
        values = np.zeros(shards.floats, np.float32)
        outs = [np.zeros(shards.floats, np.float32) for _ in range(shards.servers)]
        if self._same_machine:
            own, (values,) = self._ends.enter_context(shared_arrays(shards, 1))
            options = {"same_machine": True, "own": own}
        values[:] = 1
        self.client = self._ends.enter_context(self._running.client(**options))
        self.counts = [0] * shards.servers
        self._threads = [
            threading.Thread(target=self._push, args=(group, values, outs[group]))
            for group in range(shards.servers)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def _push(self, group: int, values: np.ndarray, out: np.ndarray) -> None:
        server = self.client.servers[group]
        try:
            while not self._stop.is_set():
                if self.counts[group] % 3:
                    server.push(values, rate=1.0, steps=1)
                else:
                    server.push_pull(values, out, rate=1.0, steps=1)
                self.counts[group] += 1
        except BaseException as error:
            self.errors.append(error)

    def await_more(self, pushes: int = 5) -> None:
        """Wait until every group has pushed so many times from now on."""
        goal = [count + pushes for count in self.counts]
        wait_until(
            lambda: self.errors or all(c >= g for c, g in zip(self.counts, goal, strict=True)),
            what="the client pushes on",
        )
        assert self.errors == []

    def await_stuck(self) -> None:
        """Wait until no group has made progress for a while."""
        seen: list[list[int]] = []

        def is_stuck() -> bool:
            seen.append(list(self.counts))
            return len(seen) > 10 and seen[-1] == seen[-10]

        wait_until(is_stuck, what="the client waits for the server")

    def finish(self) -> list[int]:
        """Stop; how many pushes of each group were acknowledged."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        assert self.errors == []
        return self.counts

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self.client.interrupt()
        for thread in self._threads:
            thread.join(60)
        self._ends.close()


def expected_weights(shards: ShardMap, counts: list[int]) -> np.ndarray:
    """What the weights are after so many pushes of ones by each group."""
    weights = np.zeros(shards.floats, np.float32)
    for chunk in shards.chunks:
        weights[chunk.start : chunk.start + chunk.floats] = -counts[shards.server_of(chunk)]
    return weights
