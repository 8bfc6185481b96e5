"""The role of a parameter server: its process, and what it and the driver say to each other.

The channel to the driver is not a socket that anybody else can reach.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from manyhands.optim.native import RuleSpec
from manyhands.parameter_server.persistence import WriteBack
from manyhands.parameter_server.server import ParameterServer, ServerSettings
from manyhands.parameter_server.shard_map import ShardMap
from manyhands.transport.certificates import Credentials
from manyhands.transport.endpoint import Endpoint

_REPORT_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Serving:
    """Sent to the driver once, when clients may connect. `incarnation` names this very process."""

    server: int
    endpoint: Endpoint
    pid: int
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class Cut:
    """Told by the driver, for faults: be cut off from a server (None: the controller), or not."""

    other: int | None
    on: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """Told by the driver: end. Answered with a last report."""


@dataclass(frozen=True, slots=True)
class ParameterServerTask:
    """One server as a role: serves until it is told to stop, replaced, or the driver is gone.

    Sends `Serving`, then a `ServerReport` twice a second; hears `Cut` and `Stop`.
    `controller` is where it hears what to hold; None: its chunks of the shard map, and no copies.
    `client_credentials` are for what it dials itself. `write_back` says where chunks are stored.
    """

    shard_map: ShardMap
    server: int
    rules: Sequence[RuleSpec]
    settings: ServerSettings
    token: str
    credentials: Credentials | None = None
    client_credentials: Credentials | None = None
    controller: Endpoint | None = None
    machine: str | None = None
    write_back: WriteBack | None = None

    def run(self, channel: Connection) -> None:
        """Serve. Blocks until `Stop`."""
        server = ParameterServer(
            self.shard_map,
            self.server,
            self.rules,
            self.settings,
            token=self.token,
            credentials=self.credentials,
            client_credentials=self.client_credentials,
            controller=self.controller,
            machine=self.machine,
            write_back=self.write_back,
        )
        with server:
            channel.send(Serving(self.server, server.endpoint, os.getpid(), server.incarnation))
            self._serve(server, channel)
        channel.send(server.report())

    def _serve(self, server: ParameterServer, channel: Connection) -> None:
        due = time.monotonic()
        while not server.is_over:
            if channel.poll(max(0.0, due - time.monotonic())):
                command = channel.recv()
                if isinstance(command, Stop):
                    return
                assert isinstance(command, Cut)
                server.cut(command.other, command.on)
            else:
                channel.send(server.report())
                due += _REPORT_EVERY_S
