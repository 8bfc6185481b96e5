"""Memory layout of images: channels last, where a model can take it.

PyTorch's convolutions are faster on images whose channels lie side by side. A forward that flattens
with `view` can't take them, so the model is tried once.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from manyhands.replica.steps import StepFunction


def channels_last(batch: Any) -> Any:
    """The batch with its images channels last."""
    if not isinstance(batch, (tuple, list)):
        return batch
    items = [
        item.contiguous(memory_format=torch.channels_last)
        if isinstance(item, torch.Tensor) and item.dim() == 4
        else item
        for item in batch
    ]
    return type(batch)(*items) if hasattr(batch, "_fields") else tuple(items)


def likes_channels_last(model: nn.Module, step: StepFunction, batch: Any) -> bool:
    """Whether the model has convolutions and trains on images channels last."""
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return False
    trial = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        with torch.random.fork_rng(devices=[]):
            loss = step(trial, channels_last(batch))
            loss.backward()  # type: ignore[no-untyped-call]
    except Exception:  # a view that doesn't fit the strides, or code that minds in its own way
        return False
    return True
