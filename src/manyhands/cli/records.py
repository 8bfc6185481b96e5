"""Reading what an earlier run left: the recipe it was started from and the weights it reached."""

from __future__ import annotations

from typing import Any

import torch

from manyhands.errors import ConfigError
from manyhands.run.checkpoint import load_latest
from manyhands.run.config_file import read_config
from manyhands.run.directory import RunDirectory
from manyhands.run.weights import load_weights


def recipe_table(run: RunDirectory, command: str, instead: str) -> dict[str, Any]:
    """The `[recipe]` table of a run; a run started from Python has none and is refused."""
    table = read_config(run.config_file).get("recipe")
    if not isinstance(table, dict):
        raise ConfigError(
            f"The run in {run.path} was started from Python, so manyhands {command} can't rebuild "
            f"its model and data; in your program, {instead}."
        )
    return table


def final_weights(run: RunDirectory) -> dict[str, torch.Tensor]:
    """The weights that the run hands over; from its last checkpoint when it was cut short."""
    if run.model_file.exists():
        return load_weights(run.model_file)
    checkpoint = load_latest(run.checkpoints).checkpoint
    return {**checkpoint.model, **(checkpoint.averaged or {})}
