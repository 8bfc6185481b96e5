"""Processes that work in slices on command, and are blocked on a pipe in between.

                  parent                        each member
    start         fork the members              build the job
    tell(...)     send to all                   call the job's method, send back what it returns
    answers()     wait for all
    close         send None, join, kill         leave the loop (a closed pipe ends it as well)

A member that is not working costs nothing, so contestants can all be alive while one is measured.
Members don't see Ctrl-C: the parent does, and closes them. They are forked from a server that has
imported PyTorch and has run nothing: milliseconds where a new interpreter takes seconds.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import torch.multiprocessing as mp

PATIENCE_S = 120.0


class Crew:
    """`size` processes, each holding the job that `job(rank, size, *arguments)` makes.

    Not thread-safe. `answers` blocks until all members have answered; RuntimeError when one of them
    fails or says nothing for two minutes longer than expected. Starting counts as a first call.
    """

    def __init__(self, name: str, job: Callable[..., Any], size: int, *arguments: Any) -> None:
        self.name = name
        self._job = job
        self._size = size
        self._arguments = arguments
        self._members: list[Any] = []
        self._pipes: list[Connection] = []
        self._life: Connection | None = None  # held by nobody else: closed when this process ends

    def start(self) -> None:
        context = mp.get_context("forkserver")
        # The first optimizer of a process imports the compiler: seconds, if left to each member.
        context.set_forkserver_preload(["torch", "torch._dynamo", self._job.__module__])
        life, self._life = context.Pipe(duplex=False)
        for rank in range(self._size):
            ours, theirs = context.Pipe()
            member = context.Process(
                target=_serve,
                args=(theirs, life, self._job, rank, self._size, self._arguments),
                name=f"{self.name}-{rank}",
                daemon=True,
            )
            member.start()
            theirs.close()
            self._members.append(member)
            self._pipes.append(ours)
        life.close()

    @property
    def pids(self) -> list[int]:
        """The members' processes, by rank."""
        return [member.pid for member in self._members]

    def tell(self, method: str, *arguments: Any) -> None:
        """Have every member call a method of its job. Fetch the answers before the next."""
        for pipe in self._pipes:
            pipe.send((method, arguments))

    def answers(self, *, expected_s: float = 0.0) -> list[Any]:
        """What each member's method returned, by rank."""
        deadline = time.monotonic() + expected_s + PATIENCE_S
        return [self._answer(rank, deadline) for rank in range(self._size)]

    def _answer(self, rank: int, deadline: float) -> Any:
        if not self._pipes[rank].poll(max(0.0, deadline - time.monotonic())):
            raise RuntimeError(f"{self.name}: process {rank} did not answer in time.")
        try:
            failed, answer = self._pipes[rank].recv()
        except EOFError:
            raise RuntimeError(f"{self.name}: process {rank} died.") from None
        if failed:
            raise RuntimeError(f"{self.name}: process {rank} failed:\n{answer}")
        return answer

    def close(self) -> None:
        """End the members, by force where they don't end themselves."""
        for pipe in self._pipes:
            try:
                pipe.send(None)
            except OSError:
                continue  # this one is gone already
        for end in (None, "terminate", "kill"):
            for member in self._members:
                if end is not None and member.is_alive():
                    getattr(member, end)()
            for member in self._members:
                member.join(timeout=3.0)
        for pipe in self._pipes:
            pipe.close()
        if self._life is not None:
            self._life.close()
        self._members, self._pipes, self._life = [], [], None

    def __enter__(self) -> Crew:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _end_with_the_benchmark(life: Connection) -> None:
    """A member in the middle of its work doesn't look at its pipe."""
    with contextlib.suppress(EOFError, OSError):
        life.recv()
    os._exit(1)


def _serve(
    pipe: Connection,
    life: Connection,
    job: Callable[..., Any],
    rank: int,
    size: int,
    arguments: tuple[Any, ...],
) -> None:
    # A session of its own, as workers of ours have: Linux shares a busy machine out by session,
    # and contestants with fewer of them would be handed less of it. Keeps Ctrl-C away as well.
    os.setsid()
    threading.Thread(target=_end_with_the_benchmark, args=(life,), daemon=True).start()
    try:
        instance = job(rank, size, *arguments)
        pipe.send((False, None))
        while (message := pipe.recv()) is not None:
            method, method_arguments = message
            pipe.send((False, getattr(instance, method)(*method_arguments)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent is gone
    except Exception:  # the member's main loop: the parent reports what happened here
        pipe.send((True, traceback.format_exc()))
