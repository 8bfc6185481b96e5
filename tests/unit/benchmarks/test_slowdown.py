"""A slowed process is stopped again and again, and let go in the end, whoever ends first."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from benchmarks.harness import slowdown
from benchmarks.harness.slowdown import Slowdown

DEADLINE_S = 30.0


@pytest.fixture
def target() -> Iterator[psutil.Process]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def stopped(process: psutil.Process) -> bool:
    return bool(process.status() == psutil.STATUS_STOPPED)


def test_a_slowed_process_stops_and_goes_on_again_and_again(target: psutil.Process) -> None:
    with Slowdown({target.pid: 0.5}):
        for _ in range(3):
            wait_until(lambda: stopped(target))
            wait_until(lambda: not stopped(target))

    assert not stopped(target)


def test_a_process_can_stand_still_and_go_on_when_told(target: psutil.Process) -> None:
    with Slowdown({target.pid: 0.0}) as pace:
        wait_until(lambda: stopped(target))
        pace.set({})
        wait_until(lambda: not stopped(target))
        pace.set({target.pid: 0.0})
        wait_until(lambda: stopped(target))

    assert not stopped(target)


def test_a_process_that_has_ended_does_not_stop_the_others_being_slowed(
    target: psutil.Process,
) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    with Slowdown({gone.pid: 0.25, target.pid: 0.25}):
        wait_until(lambda: stopped(target))


@pytest.mark.parametrize("ending", [signal.SIGTERM, None])
def test_the_target_is_let_go_however_the_helper_ends(
    target: psutil.Process, ending: signal.Signals | None
) -> None:
    helper = subprocess.Popen(
        [sys.executable, slowdown.__file__], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert helper.stdin is not None
    helper.stdin.write(f"{target.pid}:0\n".encode())
    helper.stdin.flush()
    wait_until(lambda: stopped(target))

    if ending is None:
        helper.stdin.close()  # what the end of the process at its other side does
    else:
        helper.send_signal(ending)

    helper.wait(timeout=DEADLINE_S)
    wait_until(lambda: not stopped(target))
    helper.stdin.close()
