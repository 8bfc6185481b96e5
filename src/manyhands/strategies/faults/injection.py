"""Does what a FaultPlan says to a run's own processes, and tells what it did.

A pause outlives nobody: the small process that stops another is also the one that lets it go, so a
run that is killed in the middle of a pause leaves nothing stopped behind.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from manyhands.strategies.faults.plan import Fault, FaultPlan
from manyhands.strategies.faults.random_faults import RandomFaults
from manyhands.telemetry.events import Event, FaultInjected, Note

_LOOK_EVERY_S = 0.02
_PAUSE = 'kill -STOP "$0"; sleep "$1"; kill -CONT "$0"'


class Victims(Protocol):
    """The run as a fault sees it. Thread-safe."""

    def seconds(self) -> float | None:
        """Since training began; None before."""
        ...

    def pushes(self) -> int:
        """Pushes that the servers have applied."""
        ...

    def pids(self) -> Mapping[str, int]:
        """The processes that run now, by name."""
        ...

    def spared(self) -> frozenset[str]:
        """Who must not be harmed by chance: servers that hold the last copy of something."""
        ...

    def expect_death(self, name: str) -> None:
        """Hear of a kill before it happens: it says nothing against the process."""
        ...

    def cut(self, servers: tuple[str, ...], on: bool) -> None:
        """Let nothing through between two servers, or everything again."""
        ...


@dataclass(slots=True)
class _Lasting:
    """A pause or a cut that is to end."""

    fault: Fault
    ends: float
    pids: tuple[int, ...] = ()
    helper: subprocess.Popen[bytes] | None = None


class FaultInjector(threading.Thread):
    """Carries out a plan, from `start` to `close`, which ends every pause and cut."""

    def __init__(self, plan: FaultPlan, victims: Victims, tell: Callable[[Event], None]) -> None:
        super().__init__(name="faults", daemon=True)
        self._victims = victims
        self._tell = tell
        self._waiting = list(plan.faults)
        self._lasting: list[_Lasting] = []
        self._chaos: RandomFaults | None = None
        self._next_s = 0.0  # when chaos strikes, in seconds since training began
        self._closing = threading.Event()
        if plan.chaos is not None:
            seed = secrets.randbelow(1 << 31) if plan.chaos.seed is None else plan.chaos.seed
            self._chaos = RandomFaults(seed, plan.chaos.every_s)
            self._next_s = self._chaos.pause_s()
            tell(Note(message=f"chaos: something goes wrong now and then, by seed {seed}"))

    def run(self) -> None:
        while not self._closing.wait(_LOOK_EVERY_S):
            seconds = self._victims.seconds()
            if seconds is not None:
                self._look(seconds)

    def close(self) -> None:
        """Do nothing more, and undo what lasts; may be called twice."""
        self._closing.set()
        if self.is_alive():
            self.join()
        for lasting in self._lasting:
            self._undo(lasting)
        self._lasting.clear()

    def _look(self, seconds: float) -> None:
        now, pushes = time.monotonic(), self._victims.pushes()
        for lasting in [one for one in self._lasting if one.ends <= now]:
            self._lasting.remove(lasting)
            self._undo(lasting)
            fault = lasting.fault
            self._report(f"{fault.action} ended", fault, lasting.pids, pushes)
        for fault in [one for one in self._waiting if one.is_due(pushes, seconds)]:
            self._waiting.remove(fault)
            self._strike(fault, pushes)
        if self._chaos is not None and seconds >= self._next_s:
            self._next_s = seconds + self._chaos.pause_s()
            fault_drawn = self._chaos.draw(self._free(), self._victims.spared())
            if fault_drawn is not None:
                self._strike(fault_drawn, pushes)

    def _free(self) -> set[str]:
        """Who is alive and not under a pause or a cut already."""
        busy = {name for lasting in self._lasting for name in lasting.fault.targets}
        return set(self._victims.pids()) - busy

    def _strike(self, fault: Fault, pushes: int) -> None:
        alive = self._victims.pids()
        if any(name not in alive for name in fault.targets):
            return self._report("missed", fault, (), pushes)
        pids = tuple(alive[name] for name in fault.targets)
        self._report(fault.action, fault, pids, pushes)  # first the cause, then what comes of it
        if fault.action == "kill":
            self._victims.expect_death(fault.targets[0])
            with suppress(ProcessLookupError):
                os.kill(pids[0], signal.SIGKILL)
            return None
        lasting = _Lasting(fault, time.monotonic() + fault.for_s, pids)
        if fault.action == "pause":
            lasting.helper = _paused(pids[0], fault.for_s)
        else:
            self._victims.cut(fault.targets, True)
        self._lasting.append(lasting)
        return None

    def _undo(self, lasting: _Lasting) -> None:
        if lasting.helper is None:
            self._victims.cut(lasting.fault.targets, False)
            return
        lasting.helper.kill()
        lasting.helper.wait()
        (pid,) = lasting.pids
        if pid in self._victims.pids().values():  # else its number may be somebody else's by now
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _report(self, action: str, fault: Fault, pids: tuple[int, ...], pushes: int) -> None:
        self._tell(
            FaultInjected(
                action=action, targets=fault.targets, pids=pids, push=pushes, for_s=fault.for_s
            )
        )


def _paused(pid: int, for_s: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", _PAUSE, str(pid), f"{for_s:.3f}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the driver, which then ends the pause
    )
