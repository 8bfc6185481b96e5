"""Real parameter servers for tests, in processes of their own, and clients to talk to them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from manyhands import optim
from manyhands.launch.local import Role, close_all, start_role
from manyhands.optim.native import rule_spec
from manyhands.parameter_server.client.dialling import OwnMemory
from manyhands.parameter_server.client.parameter_client import ParameterClient
from manyhands.parameter_server.persistence import WriteBack
from manyhands.parameter_server.reports import ServerReport
from manyhands.parameter_server.server import ServerSettings
from manyhands.parameter_server.server_task import ParameterServerTask, Serving
from manyhands.parameter_server.shard_map import ParameterSpec, ShardMap, make_shard_map
from manyhands.transport.arena import Arena
from manyhands.transport.certificates import RunCertificates
from manyhands.transport.endpoint import Endpoint
from tests.cluster.conftest import wait_until

PARAMETERS = (
    ParameterSpec("large", (700, 500)),  # several chunks
    ParameterSpec("small", (3, 7)),
    ParameterSpec("bias", (401,)),
    ParameterSpec("scalar", ()),
)


@dataclass
class Fleet:
    """Servers that run, and what a client needs to reach them."""

    shards: ShardMap
    token: str
    certificates: RunCertificates | None
    roles: list[Role] = field(default_factory=list)
    endpoints: list[Endpoint] = field(default_factory=list)

    def client(self, **options: Any) -> ParameterClient:
        """A client that is not yet connected; options override."""
        settings = {
            "endpoints": self.endpoints,
            "token": self.token,
            "credentials": self.certificates.client if self.certificates else None,
            "retry_s": 20.0,
        } | options
        endpoints = settings.pop("endpoints")
        return ParameterClient(self.shards, endpoints, **settings)

    def flat(self, value: float = 0.0) -> np.ndarray:
        """An array with the layout of the map."""
        return np.full(self.shards.floats, value, np.float32)

    def weights(self) -> np.ndarray:
        """All weights as they are now; zeros where no parameter is."""
        out = self.flat()
        with self.client(purpose="test looks") as client:
            client.pull(out)
        return out

    def used(self) -> np.ndarray:
        """Which places of a flat array hold a parameter's floats."""
        used = np.zeros(self.shards.floats, bool)
        for chunk in self.shards.chunks:
            used[chunk.start : chunk.start + chunk.floats] = True
        return used

    def report(self, server: int = 0) -> ServerReport:
        """A report made after this call."""
        asked = time.monotonic()
        while True:
            assert self.roles[server].channel.poll(30), "no report came"
            message = self.roles[server].receive()
            assert isinstance(message, ServerReport), message
            if message.time_s > asked:
                return message

    def wait_for(self, condition: Callable[[ServerReport], bool], *, what: str) -> None:
        """Wait until a report of the first server says so."""
        wait_until(lambda: condition(self.report()), what=what)


@contextmanager
def fleet(
    *,
    servers: int = 1,
    lanes: int = 1,
    parameters: Sequence[ParameterSpec] = PARAMETERS,
    rule: optim.Rule | None = None,
    chunk_bytes: int = 1 << 20,
    encrypted: bool = False,
    write_back: WriteBack | None = None,
    **settings: Any,
) -> Iterator[Fleet]:
    """Servers that apply `w -= rate * gradient`, unless another rule is given."""
    spec = rule_spec(rule or optim.SGD(lr=1.0))
    shards = make_shard_map(parameters, servers=servers, lanes=lanes, chunk_bytes=chunk_bytes)
    certificates = RunCertificates.make() if encrypted else None
    running = Fleet(shards, secrets.token_hex(16), certificates)
    try:
        for server in range(servers):
            task = ParameterServerTask(
                shards,
                server,
                [spec] * len(parameters),
                ServerSettings(tls=encrypted, **settings),
                running.token,
                certificates.server if certificates else None,
                write_back=write_back,
            )
            running.roles.append(start_role(task, name=f"server {server}"))
        for role in running.roles:
            serving = role.receive()
            assert isinstance(serving, Serving), serving
            assert serving.pid == role.pid
            running.endpoints.append(serving.endpoint)
        yield running
    finally:
        close_all(running.roles)


@contextmanager
def shared_arrays(shards: ShardMap, count: int) -> Iterator[tuple[OwnMemory, list[np.ndarray]]]:
    """Flat arrays in memory that a server on this machine can see."""
    import torch

    lines = [torch.zeros(shards.floats) for _ in range(count)]
    arena = Arena.with_room_for(lines)
    try:
        yield OwnMemory.of(arena), [arena.place(line).numpy() for line in lines]
    finally:
        arena.close()
