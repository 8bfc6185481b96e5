"""Servers that only speak: heartbeats over real calls; copies get in step when a test says so."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from manyhands.controller.controller import Buckets
from manyhands.controller.settings import ControllerSettings
from manyhands.controller.task import ControllerServing, ControllerTask
from manyhands.errors import ManyhandsError
from manyhands.launch.local import Role, start_role
from manyhands.parameter_server.placement import Placement
from manyhands.transport.calls import Caller
from manyhands.transport.endpoint import Endpoint
from tests.cluster.conftest import wait_until

TOKEN = secrets.token_hex(16)
MB = 1_000_000


class ScriptedServer:
    """Heartbeats as a parameter server would, and does what a placement asks by saying it is done.

    `silent` stops the heartbeats and keeps the connection, as a paused process does; `close` ends
    both, as a killed one does.
    """

    def __init__(self, endpoint: Endpoint, server: int, *, host: str = "one") -> None:
        self.server = server
        self.incarnation = secrets.token_hex(4)
        self.placement: Placement | None = None
        self.suspects: set[int] = set()
        self.fills = True  # whether copies that join get in step
        self.silent = False
        self.refusals: list[str] = []
        self.answered = 0
        self.unanswered = 0
        self._host = host
        self._caller = Caller(endpoint, token=TOKEN, purpose=f"server {server}")
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._caller.close()
        self._thread.join(10)

    @property
    def version(self) -> int:
        return 0 if self.placement is None else self.placement.version

    def leads(self) -> set[int]:
        """The buckets that this process believes it is primary of."""
        if self.placement is None or not self.placement.names(self.server, self.incarnation):
            return set()
        return {b for b, place in self.placement.buckets.items() if place.primary == self.server}

    def _beat_on(self) -> None:
        while not self._closed.wait(0.05):
            if self.silent:
                continue
            try:
                answer = self._caller.call("heartbeat", 1.0, **self.words())
            except ManyhandsError as error:
                self.unanswered += 1
                self.refusals.append(str(error))
                continue
            self.answered += 1
            if answer["placement"] is not None:
                self.placement = Placement.from_json(answer["placement"])

    def words(self) -> dict[str, Any]:
        door = asdict(Endpoint("127.0.0.1", 5000 + self.server))
        return {
            "server": self.server,
            "incarnation": self.incarnation,
            "endpoint": door,
            "replication": door,
            "host": self._host,
            "known": self.version,
            "in_step": self._in_step() if self.fills else [],
            "suspects": sorted(self.suspects),
            "progress": {},
        }

    def _in_step(self) -> list[list[int]]:
        if self.placement is None:
            return []
        return [
            [bucket, joining.server, joining.since, self.placement.buckets[bucket].lease]
            for bucket in self.leads()
            for joining in self.placement.buckets[bucket].joining
        ]


class Stage:
    """Real controller processes on one registry, and scripted servers in this process."""

    def __init__(self, registry: str, servers: int, buckets: int, **settings: Any) -> None:
        self.registry = registry
        self.settings = ControllerSettings(servers=servers, **({"copies": 3} | settings))
        homes = {bucket: bucket % servers for bucket in range(buckets)}
        self.buckets = Buckets(homes=homes, loads=dict.fromkeys(homes, MB))
        self.roles: list[Role] = []
        self.servers: dict[int, ScriptedServer] = {}
        self.endpoint = self.start_controller()
        self.caller = Caller(self.endpoint, token=TOKEN, purpose="test")
        for server in range(servers):
            self.start_server(server)

    def start_controller(self, *, port: int = 0) -> Endpoint:
        task = ControllerTask(
            registry=self.registry,
            settings=self.settings,
            buckets=self.buckets,
            token=TOKEN,
            port=port,
        )
        self.roles.append(start_role(task, name=f"controller {len(self.roles)}"))
        serving = self.roles[-1].receive()
        assert isinstance(serving, ControllerServing), serving
        assert serving.pid == self.roles[-1].pid
        return serving.endpoint

    def replace_controller(self) -> None:
        """Kill the newest controller and start another where it was."""
        self.roles[-1].kill()
        assert self.start_controller(port=self.endpoint.port).port == self.endpoint.port

    def start_server(self, server: int, **words: Any) -> ScriptedServer:
        self.servers[server] = ScriptedServer(self.endpoint, server, **words)
        return self.servers[server]

    def ask(self, command: str, **arguments: Any) -> Any:
        """Call the controller; one that is being replaced is tried again."""
        deadline = time.monotonic() + 30
        while True:
            try:
                return self.caller.call(command, 10.0, **arguments)
            except ManyhandsError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def placement(self) -> Placement | None:
        found = self.ask("placement", after=-1, wait_s=0)["placement"]
        return None if found is None else Placement.from_json(found)

    def wait(self, condition: Callable[[Placement], bool], *, what: str) -> Placement:
        """Wait until the published placement is so."""
        seen: list[Placement] = []

        def fulfilled() -> bool:
            placement = self.placement()
            seen[:] = [] if placement is None else [placement]
            return placement is not None and condition(placement)

        wait_until(fulfilled, what=what)
        return seen[0]

    def close(self) -> None:
        for server in self.servers.values():
            server.close()
        self.caller.close()
        for role in self.roles:
            role.close()


@contextmanager
def stage(
    registry: str | Path, *, servers: int, buckets: int = 12, **settings: Any
) -> Iterator[Stage]:
    """A controller and its servers, ended with the test."""
    address = f"sqlite:{registry / 'registry.db'}" if isinstance(registry, Path) else registry
    running = Stage(address, servers, buckets, **settings)
    try:
        yield running
    finally:
        running.close()


def is_whole(copies: int) -> Callable[[Placement], bool]:
    """Whether every bucket has this many copies in step and none under way."""

    def condition(placement: Placement) -> bool:
        return all(
            place.primary is not None and len(place.mirrors) == copies - 1 and not place.joining
            for place in placement.buckets.values()
        )

    return condition
