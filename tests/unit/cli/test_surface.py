"""The command-line surface is frozen: a change to it is a change to this table."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer

from manyhands.cli.main import app

SURFACE = {
    "train": {
        "recipe",
        "--strategy",
        "--workers",
        "--replicas",
        "--servers",
        "--strategy-set",
        "--epochs",
        "--batch-size",
        "--seed",
        "--set",
        "--chaos",
        "--chaos-seed",
        "--run-dir",
        "--progress",
        "--no-progress",
        "--debug",
    },
    "evaluate": {"run", "--debug"},
    "resume": {"run", "--epochs", "--progress", "--no-progress", "--debug"},
    "replicas": {"run", "--add", "--remove", "--debug"},
    "servers": {"run", "--add", "--debug"},
    "drain": {"run", "server", "--wait", "--no-wait", "--debug"},
    "export": {"run", "--to", "--force", "--debug"},
    "recipes": {"recipe", "--debug"},
    "strategies": {"--debug"},
    "doctor": {"--debug"},
}


def commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def names(parameters: list[Any]) -> set[str]:
    return {name for p in parameters for name in (*p.opts, *p.secondary_opts)}


def test_commands_and_options_are_these() -> None:
    found = {name: names(command.params) for name, command in commands().items()}
    assert found == SURFACE


def test_global_options_are_these() -> None:
    assert names(typer.main.get_command(app).params) == {"--version"}


@pytest.mark.parametrize("name", SURFACE)
def test_every_command_teaches_with_an_example(name: str) -> None:
    command = commands()[name]
    assert f"manyhands {name}" in command.help
    assert all(getattr(p, "help", None) for p in command.params)


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"]])
def test_help_answers_without_importing_torch(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom manyhands.cli.main import app\n"
        "app(sys.argv[1:], standalone_mode=False)\nprint('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "False", done.stdout + done.stderr
