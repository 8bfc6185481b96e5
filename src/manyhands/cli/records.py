"""Reading what an earlier run left: the recipe it was started from and the weights it reached."""

from __future__ import annotations

from typing import Any

import torch

from manyhands.errors import ConfigError
from manyhands.run.checkpoint import load_latest
from manyhands.run.config_file import read_config
from manyhands.run.directory import RunDirectory
from manyhands.run.weights import load_weights
from manyhands.telemetry.event_log import read_events

_ENDED = "RunEnded"
_CUT_SHORT = ("interrupted", "failed")


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
    """The weights that the run hands over; those of its last checkpoint when it was cut short."""
    last = _last_event(run)
    complete = last is None or (last.get("event") == _ENDED and last["reason"] not in _CUT_SHORT)
    if run.model_file.exists() and complete:
        return load_weights(run.model_file)
    return load_latest(run.checkpoints).checkpoint.best_weights


def finished_epochs(run: RunDirectory) -> int:
    """How many epochs a run that came to its end has done; 0 for one that still has some left."""
    last = _last_event(run) or {}
    if last.get("event") == _ENDED and last["reason"] == "finished" and run.model_file.exists():
        return int(last["epochs_done"])
    return 0


def _last_event(run: RunDirectory) -> dict[str, Any] | None:
    """The end of the log, or None when somebody removed it."""
    events = read_events(run.events_file) if run.events_file.exists() else []
    return events[-1] if events else None
