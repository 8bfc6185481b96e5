"""train, evaluate, resume and export, each in a process of its own on a tiny recipe."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

PROGRAM = [sys.executable, "-c", "from manyhands.cli.main import main; main()"]
DEADLINE_S = 90

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def checked(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def epochs_logged(run: Path) -> list[int]:
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [event["epoch"] for event in events if event["event"] == "EpochEnded"]


def test_a_run_from_train_to_export(command: Command, folder: Path) -> None:
    run = folder / "first"
    options = ["--strategy", "synchronous", "--epochs", "1", "--set", "hidden=6", "--seed", "3"]
    printed = checked(command("train", "tiny.py", *options, "--run-dir", run))
    assert "accuracy " in printed
    for line in (
        "model   first/model.safetensors",
        "curve   first/curves.png",
        "log     first/events.jsonl",
        "manyhands evaluate first",
        "manyhands resume first --epochs 2",
        "manyhands export first --to model.safetensors",
    ):
        assert line in printed

    evaluated = checked(command("evaluate", "first"))
    assert evaluated.strip() in printed

    checked(command("resume", "first", "--epochs", "3"))
    assert epochs_logged(run) == [0, 1, 2]

    exported = checked(command("export", "first", "--to", "out.safetensors"))
    assert exported.startswith("out.safetensors: 4 tensors, 44 values")
    assert set(load_file(folder / "out.safetensors")) == {
        "body.0.weight",
        "body.0.bias",
        "body.2.weight",
        "body.2.bias",
    }


def test_hogwild_trains_a_users_file(command: Command, folder: Path) -> None:
    printed = checked(command("train", "tiny.py", "--workers", "2", "--no-progress"))
    (run,) = (folder / "runs").iterdir()
    assert f"manyhands evaluate runs/{run.name}" in printed
    accuracy = float(printed.partition("accuracy ")[2].partition("%")[0])
    assert accuracy > 90


def test_without_validation_data(command: Command, folder: Path) -> None:
    options = ["--strategy", "synchronous", "--set", "validate=no", "--run-dir", "blind"]
    assert "2 epochs, without validation data" in checked(command("train", "tiny.py", *options))
    done = command("evaluate", "blind")
    assert done.returncode == 2
    assert "has no validation data to measure on" in done.stderr


def test_the_same_seed_gives_the_same_model(command: Command, folder: Path) -> None:
    for name in ("a", "b"):
        options = ["--strategy", "synchronous", "--seed", "7", "--epochs", "1"]
        checked(command("train", "tiny.py", *options, "--run-dir", name))
    first, second = (load_file(folder / name / "model.safetensors") for name in ("a", "b"))
    assert all(first[key].equal(second[key]) for key in first)


def test_ctrl_c_names_the_run_and_resume_goes_on(command: Command, folder: Path) -> None:
    run = folder / "long run"
    arguments = ["train", "tiny.py", "--epochs", "100000", "--workers", "1", "--run-dir", run]
    process = subprocess.Popen(
        [*PROGRAM, *map(str, arguments)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ, NO_COLOR="1"),
    )
    try:
        _wait_for_checkpoint(run, process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == (
        "manyhands: stopped; resume with: manyhands resume 'long run'"
    )
    assert "Traceback" not in errors

    done_before = len(epochs_logged(run))
    checked(command("resume", run, "--epochs", str(done_before + 5)))
    assert len(epochs_logged(run)) > done_before


def _wait_for_checkpoint(run: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if list(run.glob("checkpoints/epoch-*/SHA256SUMS")):
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    pytest.fail("no checkpoint appeared")
