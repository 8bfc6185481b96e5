"""Refresh: when neurons whose weights have moved are put into other buckets, and who does it.

`Refresh` is the schedule, a pure function of the number of steps. `Refresher` carries it out on a
thread of its own, beside training.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import torch

from manyhands.errors import ConfigError


@dataclass(frozen=True)
class Refresh:
    """When to hash neurons again (SLIDE, section 3).

    The first refresh comes after `first` steps, and refresh i + 1 comes `first * e^(growth * i)`
    steps after refresh i: weights move fast at first and slowly later. It hashes only neurons whose
    weights changed. Every `new_functions_every`-th refresh draws new hash functions instead and
    puts all neurons into new tables, so that two neurons that ended up in one bucket by chance do
    not stay together (None: never).

    A refresh runs beside training, on a thread of its own. With `beside=False` training waits for
    it: slower, but what is chosen then depends on the seeds alone. `mh.Synchronous`, whose runs
    repeat, always waits.
    """

    first: int = 50
    growth: float = 0.1
    new_functions_every: int | None = 20
    beside: bool = True

    def __post_init__(self) -> None:
        if not _is_whole(self.first):
            raise ConfigError(f"Refresh: first is {self.first!r}; expected a whole number >= 1.")
        number = isinstance(self.growth, (int, float)) and not isinstance(self.growth, bool)
        if not number or not math.isfinite(self.growth) or self.growth < 0:
            raise ConfigError(f"Refresh: growth is {self.growth!r}; expected a number >= 0.")
        every = self.new_functions_every
        if every is not None and not _is_whole(every):
            raise ConfigError(
                f"Refresh: new_functions_every is {every!r}; expected a whole number >= 1, or None."
            )

    def steps(self) -> Iterator[int]:
        """The steps after which a refresh is due, without end."""
        at = 0.0
        for refresh in range(2**62):
            # A growing interval soon exceeds every run; it must not exceed a float.
            at += self.first * math.exp(min(self.growth * refresh, 100.0))
            yield round(at)

    def draws_functions(self, refresh: int) -> bool:
        """Whether refresh number `refresh`, from 1 on, draws new hash functions."""
        return self.new_functions_every is not None and refresh % self.new_functions_every == 0


class Index(Protocol):
    """What a refresher uses of `kernels.LshIndex`."""

    def refresh(self, weight: torch.Tensor, threads: int) -> int: ...
    def rebuild(self, weight: torch.Tensor, seed: int, threads: int) -> None: ...


class Refresher:
    """Refreshes an index when its schedule says so, beside training.

    `count_steps` never waits for a refresh that runs beside: one that falls due meanwhile begins
    when the running one has ended, and several that fall due are one. An error in a refresh is
    raised by the next `count_steps` or `close`. One thread at a time may use a refresher. Copies
    (pickle, deepcopy, a forked process) go on counting from the same step, without the thread.
    """

    def __init__(self, schedule: Refresh, *, seed: int = 0, threads: int = 1) -> None:
        self._schedule = schedule
        self._seed = seed
        self._threads = threads
        self._start_counting(steps=0, refreshes=0)

    def _start_counting(self, *, steps: int, refreshes: int) -> None:
        self._steps = steps
        self._refreshes = refreshes  # begun
        self._due = self._schedule.steps()
        self._next = next(self._due)
        while self._next <= steps:
            self._next = next(self._due)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.busy_s = 0.0
        self.rehashed = 0

    @property
    def steps(self) -> int:
        """Steps counted so far."""
        return self._steps

    @property
    def refreshes(self) -> int:
        """Refreshes begun so far, those with new hash functions included."""
        return self._refreshes

    @property
    def running(self) -> bool:
        """Whether a refresh is running beside."""
        return self._thread is not None and self._thread.is_alive()

    def count_steps(self, steps: int, index: Index, weight: torch.Tensor) -> bool:
        """Count steps of training; begin a refresh if one is due. Returns whether it did."""
        self._raise_error()
        self._steps += steps
        if self._steps < self._next or self.running:
            return False
        while self._next <= self._steps:
            self._next = next(self._due)
        self._refreshes += 1
        if not self._schedule.beside:
            self._refresh(index, weight.detach(), self._refreshes)
            self._raise_error()
            return True
        # Not a daemon: the interpreter would end under native code that is still running.
        self._thread = threading.Thread(
            target=self._refresh, args=(index, weight.detach(), self._refreshes), name="refresh"
        )
        self._thread.start()
        return True

    def wait(self) -> None:
        """Wait until no refresh is running."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Wait for a refresh that is running; may be called twice."""
        self.wait()
        self._raise_error()

    def __enter__(self) -> Refresher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.wait()
        if error is None:
            self._raise_error()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "schedule": self._schedule,
            "seed": self._seed,
            "threads": self._threads,
            "steps": self._steps,
            "refreshes": self._refreshes,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._schedule = state["schedule"]
        self._seed = state["seed"]
        self._threads = state["threads"]
        self._start_counting(steps=state["steps"], refreshes=state["refreshes"])

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _refresh(self, index: Index, weight: torch.Tensor, number: int) -> None:
        began = time.monotonic()
        try:
            if self._schedule.draws_functions(number):
                index.rebuild(weight, self._seed + number, self._threads)
                self.rehashed += weight.shape[0]
            else:
                self.rehashed += index.refresh(weight, self._threads)
        except Exception as error:  # the thread's main loop: the training thread raises it
            self._error = error
        self.busy_s += time.monotonic() - began


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
