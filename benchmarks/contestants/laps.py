"""Training in laps: short epochs of a session, between which its processes stand still.

Replicas of a Downpour session go on while the driver validates, which is what a user wants and a
benchmark doesn't: others are measured then, and what is trained outside the clock would count. So
all processes of the session are stopped between laps, by a helper that lets them go when this
process ends, however it ends.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import psutil

from benchmarks.harness.slowdown import Slowdown
from manyhands.strategies.downpour_driver.replica_crew import ReplicaCrew
from manyhands.strategies.downpour_driver.session import DownpourSession
from manyhands.strategies.strategy import Strategy, TrainingJob

JOIN_WITHIN_S = 60.0


class Lap(NamedTuple):
    """What was trained in a lap, and how long it took."""

    images: int
    seconds: float


class Laps:
    """A session that trains in laps. All child processes of this process must be its own.

    A first lap is run here and not counted; the job's schedule may have it move nothing.
    """

    def __init__(self, strategy: Strategy, job: TrainingJob) -> None:
        self._replicas = strategy.replica_count
        self._session = strategy.start(job)
        self._epoch = 0
        self._pace = Slowdown().__enter__()
        self.lap()
        self._await_replicas()

    def _await_replicas(self) -> None:
        """See that nobody is still on the way when the clock starts."""
        if self._ready() == self._replicas:
            return
        self._pace.set({})
        deadline = time.monotonic() + JOIN_WITHIN_S
        while self._ready() < self._replicas:
            if time.monotonic() > deadline:
                raise RuntimeError(f"Not all of {self._replicas} replicas have started.")
            time.sleep(0.01)
        self._pause()

    def _ready(self) -> int:
        crew = self._crew
        return 0 if crew is None else sum(place.ready for place in crew.places)

    @property
    def _crew(self) -> ReplicaCrew | None:
        """Who knows how far replicas are, of a session that has some."""
        session = self._session
        return session._crew if isinstance(session, DownpourSession) else None

    def lap(self, *, slowed: str | None = None, share: float = 1.0) -> Lap:
        """Train an epoch; `slowed` names a role that runs `share` of the time."""
        held_back = [] if slowed is None else self._pids_of(slowed)
        before = self._samples()
        self._pace.set(dict.fromkeys(held_back, share))
        began = time.monotonic()
        summary = self._session.train_epoch(self._epoch)
        seconds = time.monotonic() - began
        self._pause()
        self._epoch += 1
        return Lap(self._samples() - before or summary.samples, seconds)

    def _samples(self) -> int:
        """All that replicas have trained on, also for an epoch that was over without them."""
        return 0 if self._crew is None else self._crew.samples

    def roles(self) -> dict[str, list[int]]:
        """The processes of the session, by the name of the role that they belong to."""
        found: dict[str, list[int]] = {}
        for process in psutil.Process().children():
            command = process.cmdline()
            if len(command) > 3 and "role_process" in command[2]:
                family = [process, *process.children(recursive=True)]
                found[command[3]] = [member.pid for member in family]
        return found

    def _pids_of(self, role: str) -> list[int]:
        roles = self.roles()
        if role not in roles:
            raise RuntimeError(f"There is no {role!r}, only {', '.join(roles)}.")
        return roles[role]

    def _pause(self) -> None:
        self._pace.set({pid: 0.0 for family in self.roles().values() for pid in family})

    def close(self) -> None:
        self._pace.set({})
        self._session.close()
        self._pace.__exit__(None, None, None)
