"""The processes of a Downpour run: parameter servers from the start, replicas as they are wanted.

Knows how each role is made up and started; who is alive and what they do is the coordinator's.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from manyhands.errors import WorkerError
from manyhands.launch.local import Role, close_all, start_role
from manyhands.optim.native import rule_spec
from manyhands.optim.rules import Rule
from manyhands.parameter_server.client import ParameterClient
from manyhands.parameter_server.server import ParameterServerTask, ServerSettings, Serving
from manyhands.parameter_server.shard_map import ShardMap
from manyhands.replica import plan as native_plan
from manyhands.replica.flat_weights import FlatLayout
from manyhands.replica.shared_weights import trainable
from manyhands.strategies.downpour_replica import ReplicaSettings, ReplicaTask
from manyhands.strategies.strategy import TrainingJob
from manyhands.transport.arena import Arena
from manyhands.transport.certificates import RunCertificates
from manyhands.transport.endpoint import Endpoint, is_loopback

_START_WITHIN_S = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterPlan:
    """What the roles of a run are to be; plain data.

    `same_machine`: replicas and servers share memory. `prefixes`: commands that replicas are
    started under, each in turn.
    """

    shard_map: ShardMap
    rule: Rule  # of the servers
    settings: ServerSettings
    plan: native_plan.PlanDescription | None
    channels_last: bool
    same_machine: bool
    replica: ReplicaSettings
    prefixes: Sequence[Sequence[str]]


class Cluster:
    """Starts roles and gives the driver its own client. Not thread-safe but for `start_replica`.

    `close` ends what `start` began; replicas belong to whoever started them.
    """

    def __init__(self, job: TrainingJob, plan: ClusterPlan) -> None:
        self._job = job
        self._plan = plan
        self._token = secrets.token_hex(16)
        host = plan.settings.host
        self._certificates = None if is_loopback(host) else RunCertificates.make()
        self._arenas: list[Arena] = []
        self._endpoints: tuple[Endpoint, ...] = ()
        self.servers: list[Role] = []
        self.client: ParameterClient | None = None
        self.layout = FlatLayout(
            job.model,
            plan.shard_map.starts,
            plan.shard_map.floats,
            channels_last=plan.channels_last,
        )

    @property
    def is_secured(self) -> bool:
        """Whether the data plane is encrypted and both sides show certificates."""
        return self._certificates is not None

    def start(self) -> torch.Tensor:
        """Start the servers and give them the model's weights; the weights as one line."""
        for number in range(self._plan.shard_map.servers):
            self.servers.append(start_role(self._server_task(number), name=f"server {number}"))
        self._endpoints = tuple(_await_serving(role) for role in self.servers)
        self.client = self._make_client()
        self.client.start()
        line = torch.zeros(self.layout.floats)
        self.layout.write({n: p.detach() for n, p in trainable(self._job.model).items()}, line)
        self.client.set_weights(line.numpy())
        self._worker_job = self._place_data()
        return line

    def start_replica(self, number: int) -> Role:
        """Start one more replica; it says `Ready` when it has the weights."""
        task = ReplicaTask(
            number=number,
            job=self._worker_job,
            shard_map=self._plan.shard_map,
            endpoints=self._endpoints,
            settings=self._plan.replica,
            access=self._access(),
            plan=self._plan.plan,
            channels_last=self._plan.channels_last,
        )
        prefixes = self._plan.prefixes
        prefix = prefixes[number % len(prefixes)] if prefixes else ()
        return start_role(task, name=f"replica {number}", arenas=self._arenas, prefix=prefix)

    def hang_up(self) -> None:
        """End what the driver's client waits for, because a server is lost; any thread may."""
        if self.client is not None:
            self.client.interrupt()

    def close(self) -> None:
        """End the servers and let go of the shared data; may be called twice."""
        if self.client is not None:
            self.client.close()
        close_all(self.servers)
        for arena in self._arenas:
            arena.close()

    def _access(self) -> dict[str, Any]:
        """What a client needs to be let in."""
        certificates = self._certificates
        return {
            "token": self._token,
            "credentials": None if certificates is None else certificates.client,
            "same_machine": self._plan.same_machine,
        }

    def _server_task(self, number: int) -> ParameterServerTask:
        certificates = self._certificates
        return ParameterServerTask(
            self._plan.shard_map,
            number,
            [rule_spec(self._plan.rule)] * len(self._plan.shard_map.parameters),
            self._plan.settings,
            self._token,
            None if certificates is None else certificates.server,
        )

    def _make_client(self) -> ParameterClient:
        return ParameterClient(
            self._plan.shard_map,
            self._endpoints,
            admin=True,
            purpose="driver",
            **self._access(),
        )

    def _place_data(self) -> TrainingJob:
        """The job as replicas get it: its data in shared memory, no average of its own."""
        tensors = self._job.source.tensors()
        arena = Arena.with_room_for(tensors)
        self._arenas.append(arena)
        source = self._job.source.with_tensors([arena.place(tensor) for tensor in tensors])
        # A copy: the driver's own is in evaluation mode whenever a validation is under way.
        model = copy.deepcopy(self._job.model)
        return replace(self._job.for_workers(source), model=model, ema=None)


def _await_serving(role: Role) -> Endpoint:
    message = role.receive() if role.channel.poll(_START_WITHIN_S) else None
    if isinstance(message, Serving):
        return message.endpoint
    raise WorkerError(f"Parameter {role.name} did not start ({role.ending()}).")
