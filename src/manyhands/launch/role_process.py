"""The main program of a role's process: attach the shared memory, take the task, run it.

What the task does is the affair of whoever started it. This file knows only how a role comes into
being and that it must not outlive its driver.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from manyhands import kernels
from manyhands.errors import ManyhandsError, in_a_sentence

_PARENT_CHECK_S = 1.0


class Failure:
    """Sent to the driver when a task raises: the cause, as a person should read it."""

    def __init__(self, error: BaseException) -> None:
        self.known = error if isinstance(error, ManyhandsError) else None
        self.summary = in_a_sentence(error)
        self.traceback = "".join(traceback.format_exception(error))


@dataclass(frozen=True, slots=True)
class Ready:
    """Sent to the driver when the role has everything that its task needs."""


class Inbox(Connection):
    """The role's end of the channel: when the driver is gone, so is this process.

    A thread reads ahead, so that the end of the channel is noticed in the middle of a long
    computation and not only at its end. Any thread may call `send`, `recv` and `poll`.
    `multiprocessing.connection.wait` sees nothing of what was read ahead.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._messages: list[Any] = []
        self._arrived = threading.Condition()
        self._sending = threading.Lock()

    def watch(self) -> None:
        """From now on read ahead, and end this process when the driver ends."""
        threading.Thread(target=self._read, name="inbox", daemon=True).start()
        threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                message = super().recv()
            except (EOFError, OSError):
                os._exit(0)
            with self._arrived:
                self._messages.append(message)
                self._arrived.notify()

    def send(self, obj: Any) -> None:
        """Send a message; from any thread."""
        with self._sending:
            super().send(obj)

    def recv(self) -> Any:
        """The next message; blocks until there is one."""
        with self._arrived:
            while not self._messages:
                self._arrived.wait()
            return self._messages.pop(0)

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Whether a message is there, or comes within this many seconds."""
        with self._arrived:
            return self._arrived.wait_for(lambda: bool(self._messages), timeout)


def _end_with_parent() -> None:
    # A fork of the driver (a DataLoader's worker, say) holds the channel open after its death.
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os._exit(0)


def prepare_process(name: str) -> None:
    """What every role wants: no Ctrl-C, logs under its name, no denormals, freed memory kept."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"[{name}] %(message)s"))
    logging.getLogger("manyhands").addHandler(handler)
    kernels.flush_denormals()
    kernels.keep_freed_memory()


def prepare_torch() -> None:
    """One thread and no denormals there either, in a role that uses torch; servers do not."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)
        torch.set_flush_denormal(True)


def unpickled(data: bytes, fds: list[int], sizes: list[int]) -> Any:
    """The task, its shared tensors lying in the arenas with these descriptors and sizes."""
    if not fds:
        return pickle.loads(data)  # without torch, whose import takes seconds
    from manyhands.transport.arena import Arena, loads

    return loads(data, [Arena(fd, size) for fd, size in zip(fds, sizes, strict=True)])


def _end(code: int) -> NoReturn:
    # Not through the interpreter's finalisation: threads that are still in a kernel or in a read
    # could hold it up, and whoever waits for this process to end would wait with it. And what they
    # hold of the native module would be listed on the user's terminal, as leaks.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(name: str, fds: str, sizes: str) -> None:
    """Run the task that arrives on the first descriptor; the others are arenas of these sizes."""
    channel_fd, *arena_fds = map(int, fds.split(","))
    prepare_process(name)
    channel = Inbox(channel_fd)
    gc.disable()  # imports make a million objects and no garbage
    try:
        data = channel.recv_bytes()
        task = unpickled(data, arena_fds, [int(size) for size in sizes.split(",") if size])
        prepare_torch()
        gc.freeze()
        gc.enable()
        channel.watch()
        task.run(channel)
        _end(0)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the driver is gone; nobody is left to hear about it
    except BaseException as error:
        with suppress(OSError):  # the driver may have ended us at this very moment
            channel.send(Failure(error))
        _end(1)
