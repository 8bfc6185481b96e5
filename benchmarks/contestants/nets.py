"""The two nets that trainers are measured on, and the images that they see."""

from __future__ import annotations

import torch
from torch import nn

LR = 0.001  # small enough for batch 1 with momentum 0.9; speed does not depend on it
MOMENTUM = 0.9


def adam_mnist_net() -> nn.Module:
    """Adam's MNIST net: 5x5 conv 10, pool, 5x5 conv 20, pool, 400, 400, 10."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(10, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(320, 400),
        nn.ReLU(),
        nn.Linear(400, 400),
        nn.ReLU(),
        nn.Linear(400, 10),
    )


def wide_mlp() -> nn.Module:
    """784-4096-4096-10: 20 million weights, where memory rather than dispatch sets the pace."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 4096),
        nn.ReLU(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Linear(4096, 10),
    )


NETS = {"mnist": adam_mnist_net, "mlp": wide_mlp}


def build(net: str) -> nn.Module:
    """The net with the same weights every time, so that all contestants start equal."""
    torch.manual_seed(0)
    return NETS[net]()


def images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `count` MNIST training images, normalised, in memory, and their classes."""
    import numpy as np

    from manyhands import data

    x, y = data.mnist("train").fetch(np.arange(count, dtype=np.int64), seed=0)
    return x.contiguous(), y
