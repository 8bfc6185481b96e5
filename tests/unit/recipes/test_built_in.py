"""The built-in recipes: the nets they promise, under the seed they were given."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.data.views import Augmented
from manyhands.recipes import Recipe, mnist, mnist_mlp
from manyhands.recipes.loading import BUILT_IN, load_recipe

# Settings with which a test can afford to build a recipe.
SMALL = {"packages": {"index": "frozen"}, "synthetic-670k": {"scale": "0.01", "samples": "50"}}


def built(name: str, **settings: str) -> Recipe:
    module = load_recipe(name)
    return module.build(module.apply({**SMALL.get(name, {}), **settings}))


COMPLETE = [
    name for name in BUILT_IN if "train" not in {s.name for s in load_recipe(name).settings}
]


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_is_described(name: str) -> None:
    module = load_recipe(name)
    assert module.description
    assert all(setting.description for setting in module.settings)


@pytest.mark.parametrize("name", COMPLETE)
def test_the_seed_decides_the_starting_weights(name: str) -> None:
    first, same, other = (
        torch.cat([p.flatten() for p in built(name, seed=seed).model.parameters()])
        for seed in ("1", "1", "2")
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_the_mnist_net_is_adams() -> None:
    recipe = built("mnist")
    shapes = [tuple(p.shape) for p in recipe.model.parameters() if p.dim() > 1]
    assert shapes == [(10, 1, 5, 5), (20, 10, 5, 5), (400, 320), (400, 400), (10, 400)]
    assert isinstance(recipe.model, nn.Sequential)
    x, y = recipe.train.fetch(np.arange(3), seed=0)
    assert recipe.model(x).shape == (3, 10)
    assert y.dtype == torch.int64


def test_the_mnist_recipe_is_the_measured_one() -> None:
    recipe = built("mnist")
    assert recipe.optimizer == mh.optim.SGD(lr=0.05, momentum=0.9, weight_decay=1e-4)
    assert recipe.schedule == mh.optim.OneCycle(warmup=0.1)
    assert recipe.ema == mh.EMA(0.999)
    assert (recipe.epochs, recipe.batch_size, recipe.seed) == (20, 128, 0)
    assert isinstance(recipe.train, Augmented)
    assert (len(recipe.train), len(recipe.validation)) == (60_000, 10_000)


def test_mnist_settings_reach_the_recipe() -> None:
    recipe = built("mnist", augment="no", ema="none", lr="0.1", epochs="3", batch_size="8")
    assert recipe.ema is None
    assert not isinstance(recipe.train, Augmented)
    assert (recipe.optimizer.lr, recipe.epochs, recipe.batch_size) == (0.1, 3, 8)


def test_weights_start_kaiming_normal() -> None:
    linear = built("mnist_mlp").model[1]
    assert linear.weight.std().item() == pytest.approx((2 / 784) ** 0.5, rel=0.02)
    assert not linear.bias.any()


def test_the_perceptron_has_the_asked_layers() -> None:
    assert [
        layer.out_features for layer in built("mnist_mlp").model if hasattr(layer, "weight")
    ] == [
        256,
        256,
        10,
    ]
    assert mnist_mlp.network((5,))(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert mnist.network()(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
