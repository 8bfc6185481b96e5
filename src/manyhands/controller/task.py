"""The controller as a role: started by the driver, replaced by another when it dies."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from manyhands.controller.controller import Buckets, Controller
from manyhands.controller.registry_address import open_registry
from manyhands.controller.settings import ControllerSettings
from manyhands.errors import ConfigError
from manyhands.parameter_server.shard_map import ShardMap
from manyhands.transport.calls import CallServer
from manyhands.transport.certificates import Credentials
from manyhands.transport.endpoint import Endpoint

_BIND_WITHIN_S = 10.0
_BIND_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True)
class ControllerServing:
    """Sent to the driver once, when servers and clients may call."""

    endpoint: Endpoint
    pid: int


@dataclass(frozen=True, slots=True)
class StopController:
    """Told by the driver: end, and hand the lead over."""


def buckets_of(shards: ShardMap) -> Buckets:
    """The buckets that hold chunks: where each begins, and its size."""
    loads: dict[int, int] = {}
    for chunk in shards.chunks:
        loads[chunk.bucket] = loads.get(chunk.bucket, 0) + 4 * chunk.floats
    return Buckets(homes={b: shards.bucket_servers[b] for b in loads}, loads=loads)


@dataclass(frozen=True, kw_only=True, slots=True)
class ControllerTask:
    """One controller as a role: serves until it is told to stop or the driver is gone.

    `registry` is an address as in `registry_address.py`. A replacement gets the port of the first,
    so that servers and clients find it where they look.
    """

    registry: str
    settings: ControllerSettings
    buckets: Buckets
    token: str
    host: str = "127.0.0.1"
    port: int = 0
    tls: bool = False
    credentials: Credentials | None = None

    def run(self, channel: Connection) -> None:
        """Serve. Blocks until `StopController`."""
        registry = open_registry(self.registry)
        name = f"{self.host} process {os.getpid()} {secrets.token_hex(4)}"
        controller = Controller(registry, self.settings, self.buckets, name=name)
        with self._open_door(controller) as door, controller:
            channel.send(ControllerServing(door.endpoint, os.getpid()))
            while not isinstance(channel.recv(), StopController):
                pass
        registry.close()

    def _open_door(self, controller: Controller) -> CallServer:
        """The door for calls; a port that a predecessor still holds is waited for."""
        deadline = time.monotonic() + (_BIND_WITHIN_S if self.port else 0.0)
        while True:
            try:
                return CallServer(
                    self.host,
                    self.port,
                    token=self.token,
                    handle=controller.handle,
                    credentials=self.credentials,
                    tls=self.tls,
                    on_close=controller.hang_up,
                )
            except ConfigError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_BIND_AGAIN_S)
