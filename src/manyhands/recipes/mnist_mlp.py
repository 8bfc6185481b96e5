"""A small perceptron on MNIST, 784-256-256-10: a quick first run, about 98%."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import nn

import manyhands as mh
from manyhands.recipes.initialisation import kaiming_normal
from manyhands.recipes.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The keys of `--set`."""

    epochs: Annotated[int, "passes over the 60,000 training images"] = 5
    batch_size: Annotated[int, "images in a batch"] = 64
    hidden: Annotated[tuple[int, ...], "widths of the hidden layers"] = (256, 256)
    lr: Annotated[float, "learning rate at the peak of the one-cycle schedule"] = 0.05
    momentum: Annotated[float, "momentum of SGD"] = 0.9
    weight_decay: Annotated[float, "weight decay"] = 1e-4
    seed: Annotated[int, "seed of the starting weights and of the order"] = 0


def network(hidden: tuple[int, ...]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = 784
    for next_width in hidden:
        layers += [nn.Linear(width, next_width), nn.ReLU()]
        width = next_width
    return nn.Sequential(*layers, nn.Linear(width, 10))


def build(settings: Settings) -> Recipe:
    """The model, freshly initialised under the seed, and how to train it."""
    torch.manual_seed(settings.seed)
    return Recipe(
        model=kaiming_normal(network(settings.hidden)),
        loss=nn.CrossEntropyLoss(),
        optimizer=mh.optim.SGD(
            lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
        ),
        schedule=mh.optim.OneCycle(),
        train=mh.data.mnist("train"),
        validation=mh.data.mnist("test"),
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        seed=settings.seed,
    )
