"""Crews: processes that answer, fail and end when told."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.contestants.torch_training import Slice, images_per_second
from benchmarks.harness.crew import Crew


class Echo:
    """A job small enough to start in any test."""

    def __init__(self, rank: int, size: int, word: str) -> None:
        self._answer = f"{word} {rank + 1}/{size}"

    def say(self, mark: str) -> tuple[str, int]:
        return self._answer + mark, os.getpid()

    def fail(self) -> None:
        raise ValueError("on purpose")

    def die(self) -> None:
        os._exit(1)

    def sleep(self) -> None:
        time.sleep(600)


def test_every_member_answers_and_none_is_left_behind() -> None:
    with Crew("echo", Echo, 2, "member") as crew:
        crew.answers()
        crew.tell("say", "!")
        answers = crew.answers()

    assert [words for words, _ in answers] == ["member 1/2!", "member 2/2!"]
    assert not any(psutil.pid_exists(pid) for _, pid in answers)


def test_a_member_that_fails_is_reported_with_its_reason() -> None:
    with Crew("echo", Echo, 1, "member") as crew:
        crew.answers()
        crew.tell("fail")
        with pytest.raises(RuntimeError, match="on purpose"):
            crew.answers()


def test_a_member_that_dies_is_reported() -> None:
    with Crew("echo", Echo, 1, "member") as crew:
        crew.answers()
        crew.tell("die")
        with pytest.raises(RuntimeError, match="echo: process 0 died"):
            crew.answers()


def test_a_busy_member_does_not_outlive_a_killed_benchmark() -> None:
    benchmark = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from benchmarks.harness.crew import Crew\n"
            "from tests.unit.benchmarks.test_crew import Echo\n"
            "import time\n"
            "crew = Crew('echo', Echo, 1, 'member'); crew.start(); crew.answers()\n"
            "crew.tell('sleep'); print(*crew.pids, flush=True); time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    assert benchmark.stdout is not None
    member = psutil.Process(int(benchmark.stdout.readline()))

    benchmark.kill()
    benchmark.wait()
    benchmark.stdout.close()

    deadline = time.monotonic() + 30.0
    while member.is_running() and member.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_crews_rate_is_taken_from_the_first_start_to_the_last_end() -> None:
    slices = [Slice(images=100, began_s=10.0, ended_s=11.0), Slice(200, 10.5, 12.0)]

    assert images_per_second(slices) == 150.0
