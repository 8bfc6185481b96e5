"""`manyhands servers` and `manyhands drain`, asked of a run that trains meanwhile."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-c", "from manyhands.cli.main import main; main()"]


@pytest.fixture
def training(folder: Path) -> Iterator[Path]:
    """A run of downpour on two servers that goes on for ever."""
    options = ["--strategy", "downpour", "--servers", "2", "--epochs", "1000000"]
    run = folder / "run"
    with subprocess.Popen(
        [*PROGRAM, "train", "tiny.py", *options, "--run-dir", str(run), "--no-progress"],
        cwd=folder,
    ) as driver:
        try:
            deadline = time.monotonic() + 60
            while not (run / "control").exists():
                assert driver.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield run
        finally:
            driver.terminate()
            driver.wait(30)


def wait_for(here, count: int) -> list[list[str]]:
    """The rows of the table, once there are so many servers that hold something."""
    deadline = time.monotonic() + 60
    while True:
        shown = here("servers", "run")
        rows = [line.split() for line in shown.stdout.splitlines()[1:]]
        if shown.exit_code == 0 and len(rows) == count and all(r[-1] == "serving" for r in rows):
            return rows
        assert time.monotonic() < deadline, shown.output
        time.sleep(0.1)


def test_servers_are_shown_added_and_drained(here, training: Path) -> None:
    rows = wait_for(here, 2)
    assert [row[0] for row in rows] == ["0", "1"]
    buckets = sum(int(row[2]) for row in rows)
    assert buckets > 0
    assert sum(int(row[3]) for row in rows) == buckets  # each has a copy on the other server
    added = here("servers", "run", "--add", "1")
    assert added.stdout.startswith("1 server will join.\nserver  process  serves  copies")
    wait_for(here, 3)
    drained = here("drain", "run", "1")
    assert drained.exit_code == 0, drained.output
    assert drained.stdout.splitlines() == [
        "Server 1 is being emptied, and leaves when it holds nothing more.",
        "Server 1 has left.",
    ]
    rows = wait_for(here, 2)
    assert [row[0] for row in rows] == ["0", "2"]
    assert sum(int(row[2]) for row in rows) == buckets
    unknown = here("drain", "run", "7")
    assert unknown.exit_code == 2
    assert unknown.stderr == "manyhands: There is no server 7; the run has [0, 2].\n"


@pytest.mark.parametrize("arguments", [["servers", "nowhere"], ["drain", "nowhere", "0"]])
def test_there_is_no_such_run(here, arguments: list[str]) -> None:
    done = here(*arguments)
    assert done.exit_code == 2
    assert "There is no run directory" in done.stderr
