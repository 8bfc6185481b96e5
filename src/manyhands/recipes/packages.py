"""Debian packages' dependencies from their descriptions: 37,000 labels, from apt's own index.

The data is what `apt-cache dumpavail` lists on this machine; where apt is missing or has no index,
a small copy that ships with Manyhands, and the log says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import manyhands as mh
from manyhands.recipes.recipe import Recipe
from manyhands.recipes.wide_net import WideSettings, wide_recipe


@dataclass(frozen=True, kw_only=True)
class Settings(WideSettings):
    """The keys of `--set`."""

    epochs: Annotated[int, "passes over the training packages"] = 10
    index: Annotated[
        str, "where packages are listed: auto, apt, frozen (the small copy) or a file's path"
    ] = "auto"


def build(settings: Settings) -> Recipe:
    """The model, freshly initialised under the seed, and how to train it."""
    train = mh.data.packages("train", index=settings.index)
    return wide_recipe(settings, train, mh.data.packages("test", index=settings.index))
