"""Wrong input of every kind: one sentence on stderr, exit code 2, no stack trace."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manyhands.run.config_file import write_config

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Here = Callable[..., Any]


def refusal(done: Any) -> str:
    assert done.exit_code == 2, done.output
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("manyhands: ")
    return done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "mnits"], "No recipe is called 'mnits'. Did you mean 'mnist'?"),
        (["train", "tiny"], "There is a file tiny.py here; write tiny.py to train it."),
        (["train", "no.py"], "no.py does not exist; expected the path of a .py file."),
        (["train", "tiny.py", "--set", "lrr=1"], "No setting is called 'lrr'. Did you mean 'lr'?"),
        (["train", "tiny.py", "--set", "lr=fast"], "Setting 'lr' is 'fast'; expected a number"),
        (["train", "tiny.py", "--set", "lr"], "--set 'lr' is not key=value"),
        (["train", "tiny.py", "--strategy", "hogwld"], "Did you mean 'hogwild'?"),
        (
            ["train", "tiny.py", "--seed", "1", "--set", "seed=2"],
            "seed is given twice: --seed 1 and --set seed=2; give one of them.",
        ),
        (["train", "tiny.py", "--set", "lr=-1"], "SGD: lr is -1.0; expected"),
        (["train", "tiny.py", "--run-dir", "."], "is not empty"),
        (["evaluate", "nowhere"], "There is no run directory"),
        (["evaluate", "."], "is not a run directory: it holds no run.toml"),
        (["resume", "tiny.py"], "is not a run directory but a file"),
        (["export", ".", "--to", "x.pt"], "expected a name that ends in .safetensors, for"),
    ],
)
def test_is_refused_in_a_sentence(here: Here, arguments: list[str], sentence: str) -> None:
    assert sentence in refusal(here(*arguments))


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["trian"], "Did you mean 'train', 'drain'?"),
        (["train", "mnist", "--worker", "2"], "--workers"),
        (["train", "mnist", "--workers", "0"], "--workers"),
        (["train", "mnist", "--epochs", "many"], "--epochs"),
        (["train"], "RECIPE"),
        (["export", "run"], "--to"),
    ],
)
def test_usage_errors_name_what_is_meant(here: Here, arguments: list[str], answer: str) -> None:
    done = here(*arguments)
    assert done.exit_code == 2
    assert answer in done.stderr
    assert "Traceback" not in done.stderr


def test_an_exception_in_the_recipe_names_file_and_line(here: Here, folder: Path) -> None:
    (folder / "broken.py").write_text("def build():\n    return 1 / 0\n")
    sentence = refusal(here("train", "broken.py"))
    assert "broken.py, line 2: build() failed: ZeroDivisionError: division by zero." in sentence


def test_a_refusal_in_a_process_of_its_own(command: Command) -> None:
    done = command("train", "mnits")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("manyhands: No recipe is called 'mnits'. Did you mean 'mnist'?")
    assert len(done.stderr.splitlines()) == 1


def test_debug_shows_the_stack_trace(command: Command) -> None:
    done = command("train", "mnits", "--debug")
    assert done.returncode != 0
    assert "Traceback" in done.stderr
    assert "ConfigError: No recipe is called 'mnits'" in done.stderr


@pytest.mark.parametrize("verb", ["evaluate", "resume"])
def test_a_run_started_from_python_says_what_to_do(here: Here, folder: Path, verb: str) -> None:
    run = folder / "from-python"
    run.mkdir()
    write_config(run / "run.toml", {"epochs": 2})
    sentence = refusal(here(verb, run))
    assert "was started from Python" in sentence
    advice = {"evaluate": "trainer.evaluate(data)", "resume": "trainer.fit(..., resume="}
    assert advice[verb] in sentence


def test_an_incomplete_record_is_refused(here: Here, folder: Path) -> None:
    run = folder / "odd"
    run.mkdir()
    write_config(run / "run.toml", {"recipe": {"name": "tiny.py"}})
    assert "The [recipe] table of the run's configuration is incomplete" in refusal(
        here("resume", run)
    )


def test_a_recipe_that_has_moved_is_named(here: Here, folder: Path) -> None:
    run = folder / "moved"
    run.mkdir()
    recipe = {"name": str(folder / "gone.py"), "strategy": {"name": "hogwild"}}
    write_config(run / "run.toml", {"recipe": recipe})
    assert "gone.py does not exist" in refusal(here("evaluate", run))
