"""A made-up set of Amazon-670K's size, 670,091 labels: what SLIDE is for, without a download."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import manyhands as mh
from manyhands.recipes.recipe import Recipe
from manyhands.recipes.wide_net import WideSettings, wide_recipe


@dataclass(frozen=True, kw_only=True)
class Settings(WideSettings):
    """The keys of `--set`."""

    epochs: Annotated[int, "passes over the training samples"] = 2
    lr: Annotated[float, "learning rate of Adam at the start; it falls to 0"] = 0.01
    scale: Annotated[float, "size of the set; 0.1 has a tenth of the labels and samples"] = 1.0
    samples: Annotated[int | None, "training samples; none for all 490,449 (times scale)"] = None
    data_seed: Annotated[int, "seed of the samples; each makes another set"] = 0


def build(settings: Settings) -> Recipe:
    """The model, freshly initialised under the seed, and how to train it."""
    train = mh.data.synthetic_670k(
        "train", scale=settings.scale, samples=settings.samples, seed=settings.data_seed
    )
    test = mh.data.synthetic_670k(
        "test", scale=settings.scale, samples=settings.validation_samples, seed=settings.data_seed
    )
    return wide_recipe(settings, train, test)
