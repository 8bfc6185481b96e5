"""A run's configuration as plain values, composed of its parts' own descriptions.

It is written into the run directory so that a person can see what was run, and, for runs started
from a recipe, so that the command line can build the same trainer again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from manyhands.callbacks import EarlyStopping
from manyhands.metrics import MetricChoice, name_of
from manyhands.optim.schedules import Schedule
from manyhands.strategies.strategy import Strategy, TrainingJob


def describe(
    job: TrainingJob,
    strategy: Strategy,
    metrics: Sequence[MetricChoice],
    early_stopping: EarlyStopping | None,
    recipe: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Everything that decides what a run does, by part."""
    return {
        "versions": {"manyhands": version("manyhands"), "torch": torch.__version__},
        "run": {
            "epochs": job.epochs,
            "batch_size": job.batch_size,
            "seed": job.seed,
            "shuffle": job.shuffle,
            "samples": len(job.source),
            "metrics": [name_of(choice) for choice in metrics],
        },
        "model": {"name": type(job.model).__name__, "parameters": parameter_count(job.model)},
        "strategy": strategy.to_dict(),
        "optimizer": job.rule.to_dict(),
        "schedule": _schedule(job),
        "ema": None if job.ema is None else {"decay": job.ema.decay, "every": job.ema.every},
        "early_stopping": None
        if early_stopping is None
        else {"metric": early_stopping.metric, "patience": early_stopping.patience},
        "recipe": None if recipe is None else dict(recipe),
    }


def parameter_count(model: nn.Module) -> int:
    """Numbers that the model holds in its parameters, tied ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _schedule(job: TrainingJob) -> dict[str, Any]:
    if isinstance(job.schedule, Schedule):
        return job.schedule.to_dict()
    return {"schedule": getattr(job.schedule, "__name__", type(job.schedule).__name__)}
