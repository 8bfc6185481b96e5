"""`--chaos`: what it asks for, what it refuses, and a run that lives through it."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from manyhands.cli.chaos import chaotic
from manyhands.cli.strategy_options import make_strategy, recorded
from manyhands.errors import ConfigError
from manyhands.telemetry.event_log import read_events
from tests.unit.cli.conftest import PROGRAM


def test_chaos_chooses_servers_that_can_be_lost_and_what_was_asked_for_stays() -> None:
    name, options = chaotic(None, {"replicas": 4}, 7)
    assert name == "downpour"
    assert options == {
        "servers": 3,
        "replicas": 4,
        "faults_chaos_every_s": 4.0,
        "faults_chaos_seed": 7,
    }
    assert chaotic("downpour", {"servers": 5}, 7)[1]["servers"] == 5
    assert chaotic(None, {}, None)[1]["faults_chaos_seed"] != chaotic(None, {}, None)[1]
    again = make_strategy(name, recorded(name, options))
    assert again.faults.in_words() == ["chaos every 4 s, seed 7"]


def test_chaos_needs_servers_and_one_seed() -> None:
    with pytest.raises(ConfigError, match="hogwild has none"):
        chaotic("hogwild", {}, None)
    with pytest.raises(ConfigError, match="twice"):
        chaotic(None, {"faults_chaos_seed": "3"}, 7)


def test_a_run_lives_through_it(folder: Path) -> None:
    log = folder / "run" / "events.jsonl"
    chaos = ["--chaos", "--chaos-seed", "1", "--strategy-set", "faults_chaos_every_s=1"]
    driver = subprocess.Popen(
        [*PROGRAM, "train", "tiny.py", *chaos, "--epochs", "1000000", "--run-dir", "run"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        deadline = time.monotonic() + 100
        while not has_lived_through(log, kills=3):
            assert driver.poll() is None, driver.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        driver.send_signal(signal.SIGINT)
        told, _ = driver.communicate(timeout=90)
    finally:
        driver.kill()
        driver.wait()
    assert "chaos: something goes wrong now and then, by seed 1" in told
    assert re.search(r"^chaos: killed \S+ \(process \d+\) at push \d+$", told, re.MULTILINE)
    assert "Traceback" not in told
    assert read_events(log)[-1]["reason"] == "interrupted"


def has_lived_through(log: Path, kills: int) -> bool:
    """Whether an epoch was trained after so many kills."""
    names = [
        event["event"]
        for event in (read_events(log) if log.exists() else [])
        if event["event"] == "EpochEnded" or event.get("action") == "kill"
    ]
    return names.count("FaultInjected") >= kills and names[-1] == "EpochEnded"
