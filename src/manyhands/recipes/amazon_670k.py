"""Amazon-670K by path, with SLIDE's settings: 670,091 products from 135,909 words.

Files: <http://manikvarma.org/downloads/XC/XMLRepository.html>, `train.txt` and `test.txt` of
Amazon-670K. Hyper-parameters as in the SLIDE paper (Chen et al. 2020): one hidden layer of 128,
densified WTA with K=8 and L=50, Adam, batches of 256, 0.5% of the output neurons active. Unlike
there the batch shares its active neurons, which is faster; `--set share=sample` is the paper's way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from manyhands.recipes import extreme
from manyhands.recipes.recipe import Recipe
from manyhands.recipes.wide_net import wide_recipe


@dataclass(frozen=True, kw_only=True)
class Settings(extreme.Settings):
    """The keys of `--set`."""

    epochs: Annotated[int, "passes over the 490,449 training samples"] = 5
    batch_size: Annotated[int, "samples in a batch"] = 256
    lr: Annotated[float, "learning rate of Adam at the start; it falls to 0"] = 0.0001
    family: Annotated[
        Literal["auto", "dwta", "simhash", "wta", "minhash"], "hash functions that find neurons"
    ] = "dwta"
    hashes: Annotated[int | None, "hash functions that must agree in a table (K)"] = 8
    tables: Annotated[int | None, "hash tables (L)"] = 50
    active: Annotated[
        int | None, "neurons taken from the tables at most; none: by the layer's size"
    ] = 3000


def build(settings: Settings) -> Recipe:
    """The model, freshly initialised under the seed, and how to train it."""
    train, test = extreme.read(settings, "amazon-670k", "Amazon-670K's train.txt")
    return wide_recipe(settings, train, test)
