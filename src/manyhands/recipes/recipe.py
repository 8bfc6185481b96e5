"""A recipe: everything that a training run needs besides the machine it runs on.

A recipe module has `build(settings: Settings) -> Recipe` and, for the keys of `--set`, a dataclass
`Settings` whose every field has a type and a default. How many workers train and by which strategy
is not the recipe's business: the command line decides that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from manyhands.optim.rules import Rule


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What `manyhands train` hands to a `Trainer` and its `fit`; None leaves the trainer's default.

    `train` and `validation` are whatever `manyhands.data.as_source` takes. A recipe with its own
    `step(model, batch) -> loss` needs no `loss`.
    """

    model: nn.Module
    optimizer: Rule
    train: Any
    loss: Callable[..., torch.Tensor] | None = None
    validation: Any = None
    epochs: int = 10
    batch_size: int = 64
    seed: int = 0
    schedule: Any = None
    ema: Any = None
    early_stopping: Any = None
    metrics: Any = None
    step: Callable[[nn.Module, Any], torch.Tensor] | None = None
