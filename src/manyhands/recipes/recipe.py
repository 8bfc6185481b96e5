"""A recipe: everything that a training run needs besides the machine it runs on.

A recipe module has `build(settings: Settings) -> Recipe` and, for the keys of `--set`, a dataclass
`Settings` whose every field has a type and a default. How many workers train and by which strategy
is not the recipe's business: the command line decides that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from manyhands.callbacks import EarlyStopping
from manyhands.metrics import MetricChoice
from manyhands.optim.rules import Rule
from manyhands.optim.schedules import RateFactor
from manyhands.replica.steps import LossFunction, StepFunction
from manyhands.strategies.strategy import EMA


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What `manyhands train` hands to a `Trainer` and its `fit`; None leaves the trainer's default.

    `train` and `validation` are whatever `manyhands.data.as_source` takes. A recipe with its own
    `step(model, batch) -> loss` needs no `loss`.
    """

    model: nn.Module
    optimizer: Rule
    train: Any
    loss: LossFunction | None = None
    validation: Any = None
    epochs: int = 10
    batch_size: int = 64
    seed: int = 0
    schedule: RateFactor | None = None
    ema: EMA | None = None
    early_stopping: EarlyStopping | None = None
    metrics: Iterable[MetricChoice] | None = None
    step: StepFunction | None = None
