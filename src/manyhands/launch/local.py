"""Roles as processes of this machine: started, watched, ended.

A role is whatever its task makes of it: a worker, a replica, a parameter server. Roles are fresh
processes rather than forks: a fork of a process that has used OpenMP can hang, and a fresh one
needs no `if __name__ == "__main__"` in the user's script because what the script defined travels
by value. A role that loses its driver ends itself (`role_process.py`).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Protocol

from manyhands.errors import ConfigError, ManyhandsError, WorkerError
from manyhands.launch.role_process import Failure
from manyhands.transport.arena import Arena, dumps

_GRACE_S = 5.0
_PROGRAM = "import sys; from manyhands.launch.role_process import main; main(*sys.argv[1:])"


class Task(Protocol):
    """What a role does. Pickled to its process; sends `Ready` once it has what it needs."""

    def run(self, channel: Connection) -> None: ...


class RemoteTraceback(Exception):
    """Shown as the cause of an error that a role raised."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(slots=True, eq=False)
class Role:
    """One running process and the driver's end of its channel. Not thread-safe.

    `channel` is an ordinary Connection: give those of several roles to
    `multiprocessing.connection.wait`. Its end means that the role is ending; `ending` says how.
    """

    name: str
    process: subprocess.Popen[bytes]
    channel: Connection

    @property
    def pid(self) -> int:
        return self.process.pid

    def receive(self) -> Any | None:
        """The next message, None when the role is gone; raises what its task raised. Blocks."""
        try:
            message = self.channel.recv()
        except (EOFError, OSError):
            return None
        if isinstance(message, Failure):
            raise error_of(self.name, message)
        return message

    def send(self, message: Any) -> None:
        """Send a message; a dead role is noticed by `receive`, not here."""
        try:
            self.channel.send(message)
        except OSError:
            return

    def poll(self) -> str | None:
        """How the process ended, or None while it runs. Does not block."""
        code = self.process.poll()
        return None if code is None else _reason(code)

    def ending(self) -> str:
        """How a role whose channel has ended came to its end. One that lingers is killed."""
        self.wait_until(time.monotonic() + 1.0)
        if self.process.poll() is None:
            self.kill()
            return "closed its channel without ending"
        return _reason(self.process.returncode)

    def wait_until(self, deadline: float) -> None:
        """Wait for the process to end, no longer than to this time of the monotonic clock."""
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return

    def kill(self) -> None:
        """End the process by force, if it hasn't ended, and wait for it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def close(self, grace_s: float = _GRACE_S) -> None:
        """End the role: by closing its channel, then by force. May be called twice."""
        close_all([self], grace_s)

    def __enter__(self) -> Role:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def start_role(
    task: Task,
    *,
    name: str,
    arenas: Sequence[Arena] = (),
    prefix: Sequence[str] = (),
) -> Role:
    """Start a process that runs the task; returns before it is ready.

    Tensors of the task that lie in the arenas are passed as pointers. `prefix` is a command that
    runs the role, such as `ip netns exec NAME`; it must leave open files open. ConfigError when the
    task can't be pickled or the prefix can't be run.
    """
    data = _pickled(task, arenas)
    ours, theirs = socket.socketpair()
    channel = Connection(ours.detach())
    with theirs:
        try:
            process = _spawn(name, theirs.fileno(), arenas, prefix)
        except BaseException:
            channel.close()
            raise
    role = Role(name, process, channel)
    try:
        channel.send_bytes(data)
    except OSError:
        return role  # it died at once: `receive` will say so
    except BaseException:
        channel.close()
        role.kill()
        raise
    return role


def close_all(roles: Sequence[Role], grace_s: float = _GRACE_S) -> None:
    """End roles together: close every channel, then wait, then use force."""
    try:
        for role in roles:
            role.channel.close()
        deadline = time.monotonic() + grace_s
        for role in roles:
            role.wait_until(deadline)
    finally:
        for role in roles:
            role.kill()


def error_of(name: str, failure: Failure) -> ManyhandsError:
    """What to raise in the driver for an error that a role's task raised."""
    error = failure.known or WorkerError(f"{name.capitalize()} failed: {failure.summary}")
    error.__cause__ = RemoteTraceback(failure.traceback)
    return error


def _spawn(
    name: str, channel_fd: int, arenas: Sequence[Arena], prefix: Sequence[str]
) -> subprocess.Popen[bytes]:
    fds = [channel_fd, *(arena.fd for arena in arenas)]
    sizes = [str(arena.size_bytes) for arena in arenas]
    program = [sys.executable, "-c", _PROGRAM, name, ",".join(map(str, fds)), ",".join(sizes)]
    try:
        return subprocess.Popen(
            [*prefix, *program],
            pass_fds=fds,
            env=dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the driver, which then ends its roles
        )
    except OSError as error:
        command = " ".join(prefix) or sys.executable
        raise ConfigError(
            f"The process of {name} could not be started with {command!r} ({error.strerror}): "
            "see that the command exists and may be run."
        ) from error


def _pickled(task: Task, arenas: Sequence[Arena]) -> bytes:
    try:
        return dumps(task, arenas)
    except Exception as error:  # objects refuse to be pickled in any way they like
        raise ConfigError(
            f"The model, the loss or the data can't be sent to a worker process ({error}): keep "
            "locks, open files and connections out of them, or use Synchronous(workers=1)."
        ) from error


def _reason(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
