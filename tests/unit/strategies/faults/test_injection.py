"""Faults are done to real processes, told, and undone, however it ends."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping

import psutil
import pytest

import manyhands as mh
from manyhands.strategies.faults.injection import FaultInjector
from manyhands.telemetry.events import FaultInjected


def wait_until(condition: Callable[[], bool], deadline_s: float = 60.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class Sleepers:
    """Processes that do nothing, under the names of a run's."""

    def __init__(self, *names: str) -> None:
        self.processes = {
            name: subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            for name in names
        }
        self.pushed = 0
        self.expected: list[str] = []
        self.cuts: list[tuple[tuple[str, ...], bool]] = []
        self.kept: frozenset[str] = frozenset()

    def seconds(self) -> float:
        return 0.0

    def pushes(self) -> int:
        return self.pushed

    def pids(self) -> Mapping[str, int]:
        return {name: p.pid for name, p in self.processes.items() if p.poll() is None}

    def spared(self) -> frozenset[str]:
        return self.kept

    def expect_death(self, name: str) -> None:
        self.expected.append(name)

    def cut(self, servers: tuple[str, ...], on: bool) -> None:
        self.cuts.append((servers, on))

    def is_stopped(self, name: str) -> bool:
        return psutil.Process(self.processes[name].pid).status() == psutil.STATUS_STOPPED


@pytest.fixture
def sleepers() -> Iterator[Sleepers]:
    found = Sleepers("server/0", "server/1", "replica/0")
    yield found
    for process in found.processes.values():
        process.kill()
        process.wait()


def injector(plan: mh.FaultPlan, sleepers: Sleepers) -> tuple[FaultInjector, list[FaultInjected]]:
    told: list[FaultInjected] = []
    found = FaultInjector(plan, sleepers, told.append)  # type: ignore[arg-type]
    found.start()
    return found, told


def test_a_kill_waits_for_its_push_and_is_announced(sleepers: Sleepers) -> None:
    running, told = injector(mh.FaultPlan().kill("server/1", at_push=500), sleepers)
    sleepers.pushed = 499
    time.sleep(0.1)
    assert not told
    sleepers.pushed = 812
    victim = sleepers.processes["server/1"]
    assert victim.wait(30) == -9
    running.close()
    assert sleepers.expected == ["server/1"]
    (fault,) = told
    assert (fault.action, fault.pids, fault.push) == ("kill", (victim.pid,), 812)


def test_a_pause_ends_by_itself(sleepers: Sleepers) -> None:
    running, told = injector(mh.FaultPlan().pause("replica/0", for_s=3.0), sleepers)
    wait_until(lambda: sleepers.is_stopped("replica/0"))
    wait_until(lambda: len(told) == 2)
    assert not sleepers.is_stopped("replica/0")
    running.close()
    assert [fault.action for fault in told] == ["pause", "pause ended"]


def test_closing_ends_what_lasts(sleepers: Sleepers) -> None:
    plan = mh.FaultPlan().pause("replica/0", for_s=600).cut("server/0", "server/1", for_s=600)
    running, _ = injector(plan, sleepers)
    wait_until(lambda: sleepers.is_stopped("replica/0") and bool(sleepers.cuts))
    running.close()
    assert not sleepers.is_stopped("replica/0")
    both = ("server/0", "server/1")
    assert sleepers.cuts == [(both, True), (both, False)]


def test_who_is_not_there_can_not_be_harmed(sleepers: Sleepers) -> None:
    running, told = injector(mh.FaultPlan().kill("controller"), sleepers)
    wait_until(lambda: bool(told))
    running.close()
    assert told[0].action == "missed"


def test_chaos_leaves_those_alone_who_are_spared(sleepers: Sleepers) -> None:
    sleepers.kept = frozenset({"server/0", "server/1"})
    told: list = []
    running = FaultInjector(mh.FaultPlan().random(3, every_s=0.05), sleepers, told.append)
    assert "seed 3" in told.pop().message
    sleepers.seconds = time.monotonic  # type: ignore[method-assign]
    running.start()
    wait_until(lambda: sleepers.processes["replica/0"].poll() is not None)
    running.close()
    assert {fault.targets[0] for fault in told} == {"replica/0"}
    assert len(sleepers.pids()) == 2


DRIVER = """
    import sys
    from manyhands.strategies.faults.injection import _paused
    _paused(int(sys.argv[1]), 1.0)
    print("paused", flush=True)
    import time; time.sleep(600)
"""


def test_a_pause_ends_even_when_its_driver_is_killed(sleepers: Sleepers) -> None:
    pid = sleepers.processes["server/0"].pid
    program = [sys.executable, "-c", textwrap.dedent(DRIVER), str(pid)]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"paused\n"
        driver.kill()
    wait_until(lambda: not sleepers.is_stopped("server/0"))
