"""How each role of a Downpour run is made up and started, and the driver's own way to the servers.

Who is alive and what becomes of the dead is the crews' affair.
"""

from __future__ import annotations

import copy
import secrets
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from manyhands.controller.settings import ControllerSettings
from manyhands.controller.task import ControllerTask, buckets_of
from manyhands.launch.local import Role, start_role
from manyhands.optim.native import rule_spec
from manyhands.parameter_server.client.parameter_client import ParameterClient
from manyhands.parameter_server.client.routes import ControllerRoutes
from manyhands.parameter_server.server_task import ParameterServerTask
from manyhands.replica.flat_weights import FlatLayout
from manyhands.replica.shared_weights import trainable
from manyhands.strategies.downpour_driver.cluster_files import ClusterFiles
from manyhands.strategies.downpour_driver.plan import DownpourPlan
from manyhands.strategies.downpour_replica.replica import ReplicaTask
from manyhands.transport.arena import Arena
from manyhands.transport.calls import Caller
from manyhands.transport.certificates import Credentials, RunCertificates
from manyhands.transport.endpoint import Endpoint, is_loopback
from manyhands.transport.reserved_port import ReservedPort


class Cluster:
    """Starts roles and gives the driver its own client.

    `start_server`, `start_replica` and `start_controller` may be called from any thread; the roles
    belong to whoever started them. `close` after they have ended.
    """

    def __init__(self, plan: DownpourPlan, files: ClusterFiles) -> None:
        self._plan = plan
        self._job = plan.job
        self._token = secrets.token_hex(16)
        hosts = plan.strategy.hosts
        secured = not all(is_loopback(host) for host in hosts)
        self._certificates = RunCertificates.make() if secured else None
        self._port = ReservedPort(hosts[-1])
        self._controller = Endpoint(hosts[-1], self._port.number)
        self._registry = files.registry
        self._write_back = files.write_back()
        self._arenas: list[Arena] = []
        self._worker_job = self._job
        self.routes: ControllerRoutes | None = None
        self.client: ParameterClient | None = None
        self.layout = FlatLayout(
            plan.job.model,
            plan.shard_map.starts,
            plan.shard_map.floats,
            channels_last=plan.channels_last,
        )

    @property
    def is_secured(self) -> bool:
        """Whether what leaves the machine is encrypted and both sides show certificates."""
        return self._certificates is not None

    def start_controller(self) -> Role:
        """Start a controller, the first one or a successor; it says `ControllerServing`."""
        plan = self._plan
        task = ControllerTask(
            registry=self._registry,
            settings=ControllerSettings(
                servers=plan.strategy.servers, copies=plan.copies, lease_s=plan.strategy.lease_s
            ),
            buckets=buckets_of(plan.shard_map),
            token=self._token,
            host=self._controller.host,
            port=self._controller.port,
            credentials=self._server_credentials,
        )
        return start_role(task, name="controller")

    def start_server(self, number: int) -> Role:
        """Start a server, empty; it says `Serving`."""
        plan = self._plan
        task = ParameterServerTask(
            plan.shard_map,
            number,
            [rule_spec(plan.server_rule)] * len(plan.shard_map.parameters),
            plan.server_settings,
            self._token,
            self._server_credentials,
            self._client_credentials,
            self._controller,
            write_back=self._write_back,
        )
        return start_role(task, name=f"server {number}")

    def start_replica(self, number: int) -> Role:
        """Start one more replica; it says `Ready` when it has the weights."""
        task = ReplicaTask(
            number=number,
            job=self._worker_job,
            shard_map=self._plan.shard_map,
            controller=self._controller,
            settings=self._plan.replica_settings,
            access=self._access(),
            plan=self._plan.native,
            fast_path=self._plan.fast_path,
            channels_last=self._plan.channels_last,
        )
        prefixes = self._plan.strategy.prefixes
        prefix = prefixes[number % len(prefixes)] if prefixes else ()
        return start_role(task, name=f"replica {number}", arenas=self._arenas, prefix=prefix)

    def caller(self) -> Caller:
        """The driver's way to ask the controller."""
        return Caller(
            self._controller,
            token=self._token,
            credentials=self._client_credentials,
            purpose="driver",
        )

    def place_data(self) -> None:
        """Put the training data where replicas see it."""
        tensors = self._job.source.tensors()
        arena = Arena.with_room_for(tensors)
        self._arenas.append(arena)
        source = self._job.source.with_tensors([arena.place(tensor) for tensor in tensors])
        # A copy: the driver's own is in evaluation mode whenever a validation is under way.
        model = copy.deepcopy(self._job.model)
        self._worker_job = replace(self._job.for_workers(source), model=model, ema=None)

    def connect(self) -> tuple[ParameterClient, ControllerRoutes]:
        """Connect to the servers, once the controller has placed everything on them."""
        self.routes = ControllerRoutes(
            self._controller,
            token=self._token,
            credentials=self._client_credentials,
            purpose="driver",
        )
        self.client = ParameterClient(
            self._plan.shard_map, self.routes, admin=True, purpose="driver", **self._access()
        )
        self.client.start()
        return self.client, self.routes

    def line_of_model(self) -> npt.NDArray[np.float32]:
        """The model's weights as one line of floats."""
        line = torch.zeros(self.layout.floats)
        self.layout.write({n: p.detach() for n, p in trainable(self._job.model).items()}, line)
        return line.numpy()

    def hang_up(self) -> None:
        """End what the driver's client waits for, because the run can't go on; any thread may."""
        if self.client is not None:
            self.client.interrupt()

    def close(self) -> None:
        """Let go of the client, the port and the shared data; may be called twice."""
        if self.client is not None:
            self.client.close()
        self._port.close()
        for arena in self._arenas:
            arena.close()

    @property
    def _server_credentials(self) -> Credentials | None:
        return None if self._certificates is None else self._certificates.server

    @property
    def _client_credentials(self) -> Credentials | None:
        return None if self._certificates is None else self._certificates.client

    def _access(self) -> dict[str, Any]:
        """What a client needs to be let in."""
        return {
            "token": self._token,
            "credentials": self._client_credentials,
            "same_machine": self._plan.same_machine,
        }
