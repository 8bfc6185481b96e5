"""The parameter servers, as a replica or the driver sees them: connect, push, pull.

Its verbs are on `servers`, one group of chunks each, so that a thread per group can keep its own
clock; what concerns all of them at once, set-up and checkpoints, is here. Which server a group's
chunks are served by is said by `routes.py`; what happens when a server is lost, by `delivery.py`.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from functools import reduce
from operator import add
from types import TracebackType

import numpy as np

from manyhands.errors import ConfigError
from manyhands.parameter_server.client.delivery import Delivery
from manyhands.parameter_server.client.dialling import Dialling, OwnMemory
from manyhands.parameter_server.client.held_weights import HeldWeights
from manyhands.parameter_server.client.lane_link import Counters
from manyhands.parameter_server.client.links import Links
from manyhands.parameter_server.client.parts import Integers
from manyhands.parameter_server.client.routes import Routes, StaticRoutes
from manyhands.parameter_server.client.server_link import Compression, Floats, ServerLink
from manyhands.parameter_server.forms import ENCODINGS
from manyhands.parameter_server.shard_map import ShardMap
from manyhands.transport.certificates import Credentials
from manyhands.transport.endpoint import Endpoint


class ParameterClient:
    """All servers of a run. Use it in a `with` statement, which connects and hangs up.

    `where` are the routes to the servers, started and closed with the client, or just the
    addresses of servers that stay. Each of `servers` may be used by another thread; the methods
    here use all of them and block until all have answered. ServerUnavailable, naming the address,
    when for `retry_s` a server was silent and nobody took its place; until then every broken
    connection is mended, every chunk followed to where it goes, and nothing is applied twice.

    `client_id` must be new for every client that ever pushes in a run (None draws one): the servers
    know replays by it. `same_machine` takes the quick way to servers on this machine; arrays that
    lie in `own` memory then travel by reference. An `admin` may set and read whole arrays.
    `encoding` is that of dense pushes, `keep` the share that "topk" sends.
    """

    def __init__(
        self,
        shard_map: ShardMap,
        where: Routes | Sequence[Endpoint],
        *,
        token: str,
        credentials: Credentials | None = None,
        client_id: int | None = None,
        same_machine: bool = False,
        own: OwnMemory | None = None,
        admin: bool = False,
        window: int = 16,
        encoding: str = "float32",
        keep: float = 0.01,
        timeout_s: float = 30.0,
        retry_s: float = 30.0,
        purpose: str = "",
    ) -> None:
        _check(encoding, keep)
        self.shard_map = shard_map
        self.client_id = secrets.randbits(63) if client_id is None else client_id
        self.routes = StaticRoutes(shard_map, where) if isinstance(where, Sequence) else where
        self._stopping = threading.Event()
        self._retry_s = retry_s
        dialling = Dialling(
            token=token,
            client=self.client_id,
            credentials=credentials,
            same_machine=same_machine,
            own=own,
            admin=admin,
            window=window,
            timeout_s=timeout_s,
            purpose=purpose,
        )
        compression = Compression(encoding, keep)
        self.servers = [
            self._group(home, dialling, compression) for home in range(shard_map.servers)
        ]

    def start(self) -> None:
        """Connect to every lane of every server."""
        self.routes.start(self._stopping, self._retry_s)
        for server in self.servers:
            server.connect()

    def pull(self, out: Floats) -> None:
        """Fetch all weights into a flat array."""
        for server in self.servers:
            server.pull(out)

    def fetch(self, held: HeldWeights) -> None:
        """Bring an array up to date: see `ServerLink.fetch`."""
        for server in self.servers:
            server.fetch(held)

    def set_weights(self, flat: Floats) -> None:
        """Overwrite all weights; versions stay. For an admin, before training or after a load."""
        for server in self.servers:
            server.set_array(0, flat)

    def get_states(self, count: int, updates: Integers | None = None) -> list[Floats]:
        """The first `count` states of the update rule, each as a flat array. For an admin.

        `updates` receives how many updates each chunk counts: Adam corrects its bias by that.
        """
        states = [np.zeros(self.shard_map.floats, np.float32) for _ in range(count)]
        for server in self.servers:
            for number, state in enumerate(states):
                server.get_array(number + 1, state, updates)
        return states

    def set_states(self, states: Sequence[Floats], updates: Integers | None = None) -> None:
        """Overwrite the states of the update rule. For an admin, after a load.

        `updates` says how many each chunk is to go on counting from.
        """
        for server in self.servers:
            for number, state in enumerate(states):
                server.set_array(number + 1, state, updates)

    @property
    def counters(self) -> Counters:
        """What has passed over all connections so far. Any thread may ask."""
        return reduce(add, (server.counters for server in self.servers), Counters())

    def interrupt(self) -> None:
        """End every call that is under way with ServerUnavailable; any thread may. Then close."""
        self._stopping.set()
        for server in self.servers:
            server.interrupt()

    def close(self) -> None:
        """Hang up; may be called twice. Threads must have left their calls: see `interrupt`."""
        self._stopping.set()
        self.routes.close()
        for server in self.servers:
            server.close()

    def __enter__(self) -> ParameterClient:
        try:
            self.start()
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

    def _group(self, home: int, dialling: Dialling, compression: Compression) -> ServerLink:
        shards = self.shard_map
        links = Links(shards, shards.chunks_of(home), dialling, self.routes)
        delivery = Delivery(
            shards,
            links,
            self.routes,
            retry_s=self._retry_s,
            stopping=self._stopping,
            name=f"server{home}-lane",
        )
        return ServerLink(shards, home, links, delivery, compression)


def _check(encoding: str, keep: float) -> None:
    if encoding not in ENCODINGS:
        raise ConfigError(f"encoding is {encoding!r}; expected one of {', '.join(ENCODINGS)}.")
    if not 0 < keep <= 1:
        raise ConfigError(f"keep is {keep!r}; expected a share, 0 < keep <= 1.")
