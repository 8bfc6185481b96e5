"""Training and evaluation mode of a model, put back as they were found.

A user may keep a part of a model in evaluation mode while the rest trains (frozen BatchNorm);
`model.train()` after an evaluation would undo that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The whole model in evaluation mode, then every part as it was."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
