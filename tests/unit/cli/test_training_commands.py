"""train, evaluate, resume and export, each in a process of its own on a tiny recipe."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from manyhands.cli.records import final_weights
from manyhands.run.checkpoint import load_latest, save
from manyhands.run.config_file import read_config
from manyhands.run.directory import RunDirectory

PROGRAM = [sys.executable, "-c", "from manyhands.cli.main import main; main()"]
DEADLINE_S = 90

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Here = Callable[..., Any]

pytestmark = pytest.mark.timeout(300)  # several processes in a row, each of which imports torch


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


def test_export_replaces_a_file_only_when_told(here: Here, folder: Path) -> None:
    options = ["--strategy", "synchronous", "--epochs", "1", "--run-dir", "run"]
    assert here("train", "tiny.py", *options).exit_code == 0
    (folder / "out.safetensors").write_text("mine")
    refused = here("export", "run", "--to", "out.safetensors")
    assert refused.exit_code == 2
    assert "out.safetensors exists; give --force to replace it" in refused.stderr
    assert (folder / "out.safetensors").read_text() == "mine"
    assert here("export", "run", "--to", "out.safetensors", "--force").exit_code == 0
    assert "body.0.weight" in load_file(folder / "out.safetensors")


def test_an_error_is_told_once(here: Here) -> None:
    done = here("train", "tiny.py", "--strategy", "synchronous", "--set", "lr=1e30")
    assert done.exit_code == 1
    assert done.output.count("loss is") == 1, done.output
    assert "failed after 0 epochs" in done.stdout
    assert "loss is" in done.stderr


def test_hogwild_trains_a_users_file(command: Command, folder: Path) -> None:
    printed = checked(command("train", "tiny.py", "--workers", "2", "--no-progress"))
    (run,) = (folder / "runs").iterdir()
    assert f"manyhands evaluate runs/{run.name}" in printed
    accuracy = float(printed.partition("accuracy ")[2].partition("%")[0])
    assert accuracy > 90


def test_without_validation_data(here: Here) -> None:
    options = ["--strategy", "synchronous", "--set", "validate=no", "--run-dir", "blind"]
    trained = here("train", "tiny.py", *options)
    assert trained.exit_code == 0, trained.output
    assert "2 epochs, without validation data" in trained.stdout
    done = here("evaluate", "blind")
    assert done.exit_code == 2
    assert "has no validation data to measure on" in done.stderr


def test_the_seed_decides_the_model(here: Here, folder: Path) -> None:
    for name, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        options = ["--strategy", "synchronous", "--seed", seed, "--epochs", "1"]
        done = here("train", "tiny.py", *options, "--run-dir", name)
        assert done.exit_code == 0, done.output
    first, same, other = (load_file(folder / name / "model.safetensors") for name in "abc")
    assert all(first[key].equal(same[key]) for key in first)
    assert not all(first[key].equal(other[key]) for key in first)


def test_the_options_win_and_are_recorded(here: Here, folder: Path) -> None:
    options = ["--strategy", "synchronous", "--seed", "7", "--epochs", "1", "--batch-size", "32"]
    assert here("train", "tiny.py", *options, "--run-dir", "run").exit_code == 0
    config = read_config(folder / "run" / "run.toml")
    asked = {"seed": 7, "epochs": 1, "batch_size": 32}
    assert {name: config["run"][name] for name in asked} == asked
    assert config["recipe"]["options"] == asked
    assert config["recipe"]["settings"]["seed"] == 7


def test_a_changed_recipe_is_refused_by_evaluate(here: Here, folder: Path) -> None:
    options = ["--strategy", "synchronous", "--epochs", "1", "--run-dir", "run"]
    assert here("train", "tiny.py", *options).exit_code == 0
    changed = (folder / "tiny.py").read_text().replace("hidden[0], 2)", "hidden[0], 3)")
    (folder / "tiny.py").write_text(changed)
    done = here("evaluate", "run")
    assert done.exit_code == 2
    assert "don't fit the model that the recipe builds now" in done.stderr


def test_a_finished_run_has_nothing_left_to_resume(here: Here) -> None:
    options = ["--strategy", "synchronous", "--epochs", "1", "--run-dir", "run"]
    assert here("train", "tiny.py", *options).exit_code == 0
    done = here("resume", "run")
    assert done.exit_code == 0, done.output
    assert done.stdout == (
        "The run has done all of its epochs (1). To train on: manyhands resume run --epochs 2\n"
    )


@pytest.mark.parametrize(
    "end",
    ['{"event": "EpochEnded", "epoch": 1}', '{"event": "RunEnded", "reason": "interrupted"}'],
)
def test_a_run_cut_short_hands_over_its_last_checkpoint(here: Here, folder: Path, end: str) -> None:
    options = ["--strategy", "synchronous", "--epochs", "1", "--run-dir", "run"]
    assert here("train", "tiny.py", *options).exit_code == 0
    run = RunDirectory.open(folder / "run")
    checkpoint = load_latest(run.checkpoints).checkpoint
    moved = {name: tensor + 1 for name, tensor in checkpoint.model.items()}
    save(run.checkpoints, replace(checkpoint, epoch=2, model=moved))
    assert all(not final_weights(run)[name].equal(moved[name]) for name in moved)
    with run.events_file.open("a") as log:
        log.write(f"{end}\n")
    assert all(final_weights(run)[name].equal(moved[name]) for name in moved)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_is_named_and_resume_goes_on(
    command: Command, folder: Path, number: signal.Signals, code: int
) -> None:
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
        _wait_for_first_epoch(run, process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code, errors
    assert errors.splitlines()[-1] == (
        "manyhands: stopped; resume with: manyhands resume 'long run'"
    )
    assert "Traceback" not in errors

    if number == signal.SIGINT:  # what a run leaves behind is the same
        done_before = len(epochs_logged(run))
        checked(command("resume", run, "--epochs", str(done_before + 5)))
        assert len(epochs_logged(run)) > done_before


def _wait_for_first_epoch(run: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if list(run.glob("checkpoints/epoch-*[1-9]*/SHA256SUMS")):
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    pytest.fail("no checkpoint of a trained epoch appeared")
