"""Worker processes of one replica: started, watched, replaced, ended.

Workers are fresh processes rather than forks: a fork of a process that has used OpenMP can hang,
and a fresh one needs no `if __name__ == "__main__"` in the user's script because what the script
defined travels by value. A worker that loses its driver ends itself.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from manyhands.errors import ConfigError, ManyhandsError, WorkerError
from manyhands.replica.arena import Arena, dumps
from manyhands.replica.worker_process import Failure, Ready
from manyhands.telemetry.events import WorkerLost

_CLOSING_TIME_S = 5.0
_DEATHS_ALLOWED = 3  # of one place in a row, with no message in between
_PROGRAM = "import sys; from manyhands.replica.worker_process import main; main(*sys.argv[1:])"


class Task(Protocol):
    """What a worker process does. Pickled to it; sends `Ready` once it has what it needs."""

    def run(self, channel: Connection) -> None: ...


class RemoteTraceback(Exception):
    """Shown as the cause of an error that a worker raised."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(slots=True)
class Worker:
    """One running worker process and the driver's end of its channel."""

    number: int
    process: subprocess.Popen[bytes]
    channel: Connection

    @property
    def pid(self) -> int:
        return self.process.pid


class WorkerPool:
    """A fixed number of places, each held by a worker process.

    Not thread-safe. `receive` blocks up to its timeout; `close` ends every worker, by force after
    a few seconds, and may be called twice.
    """

    def __init__(self, task: Callable[[int], Task], *, workers: int, arenas: list[Arena]) -> None:
        self._task = task
        self._arenas = arenas
        self._workers: list[Worker] = []
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
        try:
            self._workers[number].channel.send(message)
        except OSError:
            return

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
        reason = _ending(old.process)
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
        channels = {worker.channel: worker for worker in self._workers}
        received: list[tuple[int, Any | None]] = []
        for ready in wait(list(channels), timeout_s):
            assert isinstance(ready, Connection)
            number, message = channels[ready].number, _take(ready)
            if isinstance(message, Failure):
                raise _error_of(number, message)
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
        try:
            for worker in workers:
                worker.channel.close()
            deadline = time.monotonic() + _CLOSING_TIME_S
            for worker in workers:
                _wait_until(worker.process, deadline)
        finally:
            for worker in workers:
                if worker.process.poll() is None:
                    worker.process.kill()
                worker.process.wait()

    def _spawn(self, number: int) -> Worker:
        task = _pickled(self._task(number), self._arenas)
        ours, theirs = socket.socketpair()
        fds = [theirs.fileno(), *(arena.fd for arena in self._arenas)]
        sizes = [str(arena.size_bytes) for arena in self._arenas]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _PROGRAM,
                ",".join(map(str, fds)),
                ",".join(sizes),
            ],
            pass_fds=fds,
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the driver, which then ends the workers
        )
        theirs.close()
        channel = Connection(ours.detach())
        worker = Worker(number, process, channel)
        try:
            channel.send_bytes(task)
        except OSError:
            return worker  # it died at once: `receive` will say so
        except BaseException:
            channel.close()
            process.kill()
            process.wait()
            raise
        return worker


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _pickled(task: Task, arenas: Sequence[Arena]) -> bytes:
    try:
        return dumps(task, arenas)
    except Exception as error:  # objects refuse to be pickled in any way they like
        raise ConfigError(
            f"The model, the loss or the data can't be sent to a worker process ({error}): keep "
            "locks, open files and connections out of them, or use Synchronous(workers=1)."
        ) from error


def _no_task(number: int) -> Task:
    raise RuntimeError(f"worker {number} asked of a closed pool")


def _error_of(number: int, failure: Failure) -> ManyhandsError:
    error = failure.known or WorkerError(f"Worker {number} failed: {failure.summary}")
    error.__cause__ = RemoteTraceback(failure.traceback)
    return error


def _take(channel: Connection) -> Any | None:
    try:
        return channel.recv()
    except (EOFError, OSError):
        return None


def _wait_until(process: subprocess.Popen[bytes], deadline: float) -> None:
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return


def _ending(process: subprocess.Popen[bytes]) -> str:
    _wait_until(process, time.monotonic() + 1.0)
    if process.poll() is None:
        process.kill()
        process.wait()
        return "closed its channel without ending"
    code = process.returncode
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
