"""Worker processes of one replica: a fixed number of places, refilled when a worker dies."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from manyhands.errors import WorkerError
from manyhands.launch.local import Role, Task, close_all, start_role
from manyhands.launch.role_process import Ready
from manyhands.telemetry.events import WorkerLost
from manyhands.transport.arena import Arena

_DEATHS_ALLOWED = 3  # of one place in a row, with no message in between


class WorkerPool:
    """A fixed number of places, each held by a worker process.

    Not thread-safe. `receive` blocks up to its timeout; `close` ends every worker, by force after
    a few seconds, and may be called twice.
    """

    def __init__(self, task: Callable[[int], Task], *, workers: int, arenas: list[Arena]) -> None:
        self._task = task
        self._arenas = arenas
        self._workers: list[Role] = []
        self._size = workers
        self._deaths = [0] * workers

    def start(self) -> None:
        """Start every worker and wait until each is ready."""
        for number in range(self._size):
            self._workers.append(self._spawn(number))
        waiting = set(range(self._size))
        while waiting:
            for number, message in self._receive_all(timeout_s=60.0):
                if isinstance(message, Ready):
                    waiting.discard(number)
                elif message is None:
                    self.replace(number)

    def send(self, number: int, message: Any) -> None:
        """Send a message to a worker; a dead one is noticed by `receive`, not here."""
        self._workers[number].send(message)

    def broadcast(self, message: Any) -> None:
        """Send a message to every worker."""
        for number in range(self._size):
            self.send(number, message)

    def receive(self, timeout_s: float) -> list[tuple[int, Any | None]]:
        """Messages that arrive within the time, as (worker, message); None marks a death.

        An error that a worker's task raised is raised here.
        """
        messages = self._receive_all(timeout_s)
        return [(number, m) for number, m in messages if not isinstance(m, Ready)]

    def replace(self, number: int) -> WorkerLost:
        """Put a new process in a dead worker's place; raises WorkerError when that is in vain."""
        old = self._workers[number]
        old.channel.close()
        reason = old.ending()
        self._deaths[number] += 1
        if self._deaths[number] > _DEATHS_ALLOWED:
            raise WorkerError(
                f"Worker {number} died {self._deaths[number]} times without getting anything done "
                f"(the last one {reason}): look for what kills it. Memory is the usual cause; try "
                "fewer workers."
            )
        self._workers[number] = self._spawn(number)
        new = self._workers[number]
        return WorkerLost(worker=number, pid=old.pid, reason=reason, replaced_by=new.pid)

    def _receive_all(self, timeout_s: float) -> list[tuple[int, Any | None]]:
        channels = {worker.channel: number for number, worker in enumerate(self._workers)}
        received: list[tuple[int, Any | None]] = []
        for ready in wait(list(channels), timeout_s):
            assert isinstance(ready, Connection)
            number = channels[ready]
            message = self._workers[number].receive()
            if message is not None and not isinstance(message, Ready):
                self._deaths[number] = 0
            received.append((number, message))
        return received

    @property
    def pids(self) -> list[int]:
        """The process of each place."""
        return [worker.pid for worker in self._workers]

    def close(self) -> None:
        """End every worker: first by closing its channel, then by force."""
        workers, self._workers = self._workers, []
        self._arenas = []  # nothing of ours keeps the shared memory alive
        self._task = _no_task
        close_all(workers)

    def _spawn(self, number: int) -> Role:
        return start_role(self._task(number), name=f"worker {number}", arenas=self._arenas)


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _no_task(number: int) -> Task:
    raise RuntimeError(f"worker {number} asked of a closed pool")
