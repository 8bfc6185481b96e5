"""A controller, three servers and clients, all real: kills and pauses lose nothing, double nothing.

Pushes are whole numbers, so the weights tell exactly how many were applied.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyhands import optim
from manyhands.controller.settings import ControllerSettings
from manyhands.controller.task import ControllerServing, ControllerTask, buckets_of
from manyhands.errors import ServerUnavailable
from manyhands.launch.local import Role, start_role
from manyhands.parameter_server.placement import Placement
from manyhands.parameter_server.server_task import Cut
from manyhands.parameter_server.shard_map import ShardMap, make_shard_map
from manyhands.transport.calls import Caller
from manyhands.transport.endpoint import Endpoint
from tests.cluster.conftest import wait_until
from tests.cluster.replicated import PARAMETERS, Pushers, ReplicatedServers

SERVERS = 3


@dataclass
class RealController:
    """The controller's process, which may be killed and started again."""

    shards: ShardMap
    token: str
    registry: Path
    copies: int
    role: Role | None = None
    endpoint: Endpoint | None = None

    def start(self) -> None:
        task = ControllerTask(
            registry=f"sqlite:{self.registry}",
            settings=ControllerSettings(servers=SERVERS, copies=self.copies),
            buckets=buckets_of(self.shards),
            token=self.token,
            port=self.endpoint.port if self.endpoint else 0,
        )
        self.role = start_role(task, name="controller")
        serving = self.role.receive()
        assert isinstance(serving, ControllerServing), serving
        self.endpoint = serving.endpoint

    def kill(self) -> None:
        assert self.role is not None
        os.kill(self.role.pid, signal.SIGKILL)
        self.role.close()

    def placement(self) -> Placement:
        """The newest; a controller that has just begun has read none yet, which is waited for."""
        assert self.endpoint is not None
        found: list[object] = []

        def told() -> bool:
            try:
                found.append(caller.call("placement", 20.0, after=-1, wait_s=1.0)["placement"])
            except ServerUnavailable:  # another one leads until its lease has ended
                return False
            return found[-1] is not None

        with Caller(self.endpoint, token=self.token) as caller:
            wait_until(told, what="a placement")
        return Placement.from_json(found[-1])

    def wait_until_whole(self) -> None:
        """Wait until every bucket has all its copies, in step, on the processes that live."""

        def whole() -> bool:
            placement = self.placement()
            return bool(placement.buckets) and all(
                place.primary is not None
                and len(place.mirrors) == self.copies - 1
                and not place.joining
                for place in placement.buckets.values()
            )

        wait_until(whole, what="all copies in step")


@dataclass
class World:
    controller: RealController
    servers: ReplicatedServers

    def restart(self, server: int) -> None:
        """As a driver would: tell the controller whose process ended, and start another."""
        assert self.controller.endpoint is not None
        with Caller(self.controller.endpoint, token=self.servers.token) as caller:
            incarnation = self.servers.serving[server].incarnation
            caller.call("dead", 20.0, server=server, incarnation=incarnation)
        self.servers.start(server)


@contextmanager
def world(
    tmp_path: Path, *, copies: int = 3, task: dict[str, Any] | None = None, **settings: Any
) -> Iterator[World]:
    """A controller and servers; `task` and `settings` are further words of the servers' own."""
    shards = make_shard_map(PARAMETERS, servers=SERVERS, lanes=2, chunk_bytes=1 << 16)
    token = secrets.token_hex(16)
    controller = RealController(shards, token, tmp_path / "registry.db", copies)
    controller.start()
    assert controller.endpoint is not None
    rule = optim.SGD(lr=1.0)
    servers = ReplicatedServers(
        shards, token, controller.endpoint, None, rule, settings, task or {}
    )
    try:
        servers.start(*range(SERVERS))
        yield World(controller, servers)
    finally:
        servers.close()
        assert controller.role is not None
        controller.role.close()


@contextmanager
def pushing(running: ReplicatedServers, **options: Any) -> Iterator[Pushers]:
    """Two clients that push all the time; at the end the weights are exactly what they pushed."""
    with (
        running.client(**options) as first,
        running.client(**options) as second,
        Pushers(running, [first, second]) as pushers,
    ):
        pushers.wait_for_more()
        yield pushers
        pushers.wait_for_more()
        pushers.stop()
        np.testing.assert_array_equal(running.weights(), pushers.expected())


@pytest.mark.parametrize("same_machine", [False, True])
def test_servers_are_killed_one_after_another(tmp_path, same_machine):
    with world(tmp_path) as run, pushing(run.servers, same_machine=same_machine) as pushers:
        for server in range(SERVERS):
            run.servers.kill(server)
            pushers.wait_for_more()
            run.restart(server)
            run.controller.wait_until_whole()
            pushers.wait_for_more()


def test_a_server_is_killed_and_nobody_says_so(tmp_path):
    with world(tmp_path) as run, pushing(run.servers) as pushers:
        run.servers.kill(1)
        pushers.wait_for_more()


def test_the_controller_is_killed_and_replaced_and_then_a_server_dies(tmp_path):
    with world(tmp_path) as run, pushing(run.servers) as pushers:
        run.controller.kill()
        pushers.wait_for_more(10)
        run.controller.start()
        pushers.wait_for_more()
        run.servers.kill(0)
        pushers.wait_for_more()


def test_a_server_dies_while_the_controller_is_dead(tmp_path):
    with world(tmp_path) as run, pushing(run.servers) as pushers:
        run.controller.kill()
        run.servers.kill(2)
        run.controller.start()
        pushers.wait_for_more()


def test_a_server_is_stopped_and_goes_on_later(tmp_path):
    with world(tmp_path) as run, pushing(run.servers) as pushers:
        for server in range(SERVERS):
            run.servers.pause(server)
            pushers.wait_for_more()
            run.servers.go_on(server)
            run.controller.wait_until_whole()
            pushers.wait_for_more()


def test_two_servers_are_cut_off_from_each_other(tmp_path):
    with world(tmp_path) as run, pushing(run.servers) as pushers:
        for on in (True, False):
            run.servers.roles[0].send(Cut(1, on))
            run.servers.roles[1].send(Cut(0, on))
            pushers.wait_for_more(10)
        run.controller.wait_until_whole()


def test_a_server_is_cut_off_from_the_controller_alone(tmp_path):
    with world(tmp_path) as run, pushing(run.servers) as pushers:
        run.servers.roles[0].send(Cut(None, True))
        wait_until(
            lambda: all(p.primary != 0 for p in run.controller.placement().buckets.values()),
            what="others lead",
        )
        pushers.wait_for_more()
        run.servers.roles[0].send(Cut(None, False))
        run.controller.wait_until_whole()


def test_two_of_three_are_killed_at_once(tmp_path):
    with world(tmp_path) as run, pushing(run.servers) as pushers:
        run.controller.wait_until_whole()
        run.servers.kill(0)
        run.servers.kill(1)
        pushers.wait_for_more()
        run.restart(0)
        run.restart(1)
        run.controller.wait_until_whole()
        run.servers.kill(2)
        pushers.wait_for_more()


def test_a_process_that_was_declared_dead_ends(tmp_path):
    with world(tmp_path) as run, pushing(run.servers) as pushers:
        zombie = run.servers.roles[1]
        run.servers.pause(1)
        run.restart(1)
        pushers.wait_for_more()
        os.kill(zombie.pid, signal.SIGCONT)
        wait_until(lambda: zombie.poll() is not None, what="the old process ends")
        zombie.close()
        run.controller.wait_until_whole()


def test_with_two_copies_one_may_go_at_a_time(tmp_path):
    with world(tmp_path, copies=2) as run, pushing(run.servers) as pushers:
        for server in range(SERVERS):
            run.servers.kill(server)
            pushers.wait_for_more()
            run.restart(server)
            run.controller.wait_until_whole()
