"""Starting weights of the built-in recipes."""

from __future__ import annotations

import torch
from torch import nn


def kaiming_normal(model: nn.Module) -> nn.Module:
    """Kaiming-normal weights for ReLU and zero biases, drawn from torch's global generator."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if isinstance(layer.bias, torch.Tensor):
                nn.init.zeros_(layer.bias)
    return model
