"""A Downpour run as its FaultPlan sees it: processes by name, pushes so far, whom to spare."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from manyhands.parameter_server.placement import Placement
from manyhands.strategies.downpour_driver.controller_keeper import ControllerKeeper
from manyhands.strategies.downpour_driver.placement_story import sole_holders
from manyhands.strategies.downpour_driver.replica_crew import ReplicaCrew
from manyhands.strategies.downpour_driver.server_crew import ServerCrew

_CONTROLLER = "controller"


class DownpourVictims:
    """See `faults.injection.Victims`. Thread-safe.

    A push is an update of every one of the `chunks`; those of sparse parameters count for less.
    """

    def __init__(
        self,
        crew: ReplicaCrew,
        servers: ServerCrew,
        controller: ControllerKeeper,
        *,
        placement: Callable[[], Placement | None],
        chunks: int,
    ) -> None:
        self._crew = crew
        self._servers = servers
        self._controller = controller
        self._placement = placement
        self._chunks = max(1, chunks)

    def seconds(self) -> float | None:
        began = self._crew.began
        return None if began is None else time.monotonic() - began

    def pushes(self) -> int:
        return self._servers.updates // self._chunks

    def pids(self) -> Mapping[str, int]:
        found = {f"replica/{p.number}": p.role.pid for p in self._crew.places if p.ready}
        found |= {f"server/{p.number}": p.role.pid for p in self._servers.places if p.incarnation}
        pid = self._controller.pid
        return found if pid is None else {**found, _CONTROLLER: pid}

    def spared(self) -> frozenset[str]:
        """Servers that hold a last copy, unless there never is another."""
        placement = self._placement()
        if placement is None or len(placement.members) == 1:
            return frozenset()
        living = {place.number: place.incarnation for place in self._servers.places}
        return frozenset(f"server/{number}" for number in sole_holders(placement, living))

    def expect_death(self, name: str) -> None:
        kind, _, number = name.partition("/")
        if kind == "server":
            self._servers.expect_death(int(number))
        elif kind == "replica":
            self._crew.expect_death(int(number))
        else:
            self._controller.expect_death()

    def cut(self, servers: tuple[str, ...], on: bool) -> None:
        numbers = [None if name == _CONTROLLER else int(name[7:]) for name in servers]
        for one, other in (numbers, numbers[::-1]):
            if one is not None:
                self._servers.cut(one, other, on)
