"""The nets that trainers are measured on, and the images that they see."""

from __future__ import annotations

import torch
from torch import nn

from manyhands.recipes import mnist

LR = 0.001  # small enough for batch 1 with momentum 0.9; speed does not depend on it
MOMENTUM = 0.9


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


def small_alexnet() -> nn.Module:
    """AlexNet's shape for images of 3 x 32 x 32: four layers of features, then 4096, 4096, 10."""
    return nn.Sequential(
        nn.Conv2d(3, 48, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(48, 96, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(96, 192, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(192, 256, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Linear(4096, 10),
    )


def one_layer_mlp() -> nn.Module:
    """The wide MLP with only its 4096 x 4096 layer trained: all that is pushed belongs to it."""
    net = wide_mlp()
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name.startswith("3."))
    return net


NETS = {
    "mnist": mnist.network,
    "mlp": wide_mlp,
    "alexnet": small_alexnet,
    "layer": one_layer_mlp,
}


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
