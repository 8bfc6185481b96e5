"""The net of the recipes with very many labels: sparse input, a hidden layer, SLIDE's output layer.

SparseLinear(features, 128) - ReLU - LSHLinear(128, labels)
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import nn

import manyhands as mh
from manyhands.data.source import Source
from manyhands.data.sparse_source import SparseSource
from manyhands.errors import ConfigError
from manyhands.recipes.recipe import Recipe

FAMILIES: dict[str, type[mh.sparse.HashFamily]] = {
    "dwta": mh.sparse.DWTA,
    "simhash": mh.sparse.SimHash,
    "wta": mh.sparse.WTA,
    "minhash": mh.sparse.MinHash,
}
METRICS = ("p@1", "p@3", "p@5")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WideSettings:
    """What all of these recipes let one change; each has defaults of its own."""

    epochs: Annotated[int, "passes over the training data"] = 10
    batch_size: Annotated[int, "samples in a batch"] = 256
    hidden: Annotated[int, "neurons of the hidden layer"] = 128
    lr: Annotated[float, "learning rate of Adam at the start; it falls to 0"] = 0.003
    output: Annotated[
        Literal["lsh", "full"], "compute the neurons that matter, or all: the full softmax"
    ] = "lsh"
    family: Annotated[
        Literal["auto", "dwta", "simhash", "wta", "minhash"],
        "hash functions that find neurons; auto: dwta, with hashes by the layer's size",
    ] = "auto"
    hashes: Annotated[int | None, "hash functions that must agree in a table (K)"] = None
    tables: Annotated[int | None, "hash tables (L)"] = None
    hardest: Annotated[
        int | None,
        "neurons from the tables for each sample, the largest wrong outputs; none: by the layer",
    ] = None
    active: Annotated[
        int | None, "neurons that the tables' votes add at most; none: 0 beside hardest"
    ] = None
    floor: Annotated[
        int | None, "random neurons fill the active ones up to this; none: by the layer's size"
    ] = None
    share: Annotated[
        Literal["batch", "sample"], "who shares a set of active neurons: the batch, or nobody"
    ] = "batch"
    validation_samples: Annotated[
        int | None, "test samples measured after each epoch; none for all"
    ] = 2000
    seed: Annotated[int, "seed of the weights, the order and the hash functions"] = 0


def wide_recipe(settings: WideSettings, train: SparseSource, test: Source | None) -> Recipe:
    """The model for this data, freshly initialised under the seed, and how to train it.

    Without test data a tenth of the training samples is held out.
    """
    seen: Source = train
    if test is None:
        seen, test = mh.data.split(train, 0.1, seed=settings.seed)
    torch.manual_seed(settings.seed)
    return Recipe(
        model=network(settings, train.features.width, labels_of(train)),
        loss=mh.sparse.LSHSoftmaxLoss(),
        optimizer=mh.optim.Adam(lr=settings.lr),
        schedule=mh.optim.Cosine(),
        train=seen,
        validation=_some(test, settings.validation_samples),
        metrics=METRICS,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        seed=settings.seed,
    )


def network(settings: WideSettings, features: int, labels: int) -> nn.Sequential:
    """The net above, or the same with an output layer that computes every neuron."""
    if settings.hidden < 1:
        raise ConfigError(f"hidden is {settings.hidden}; expected 1 neuron or more.")
    output: nn.Module = nn.Linear(settings.hidden, labels)
    if settings.output == "lsh":
        output = _wide(settings, labels)
    return nn.Sequential(mh.sparse.SparseLinear(features, settings.hidden), nn.ReLU(), output)


def _wide(settings: WideSettings, labels: int) -> mh.sparse.LSHLinear:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of few outputs; said below in our words
        layer = mh.sparse.LSHLinear(
            settings.hidden,
            labels,
            family=_family(settings),
            sampling=mh.sparse.Sampling(
                hardest=settings.hardest, limit=settings.active, floor=settings.floor
            ),
            share=settings.share,
            seed=settings.seed,
        )
    if not layer.hashes:
        logger.warning(
            "The output layer has only %d neurons and computes all of them: output=full is the "
            "better choice.",
            labels,
        )
    return layer


def _family(settings: WideSettings) -> mh.sparse.HashFamily | None:
    given = {"hashes": settings.hashes, "tables": settings.tables}
    numbers = {name: number for name, number in given.items() if number is not None}
    if settings.family == "auto":
        return mh.sparse.DWTA(**numbers) if numbers else None
    return FAMILIES[settings.family](**numbers)


def labels_of(source: SparseSource) -> int:
    """How many labels a source has."""
    if isinstance(source.labels, torch.Tensor):
        return int(source.labels.max()) + 1
    return source.labels.width


def _some(source: Source, samples: int | None) -> Source:
    """Evenly spaced samples, for measures that would take longer than the training."""
    if samples is None or samples >= len(source):
        return source
    if samples < 1:
        raise ConfigError(f"validation_samples is {samples}; expected 1 or more, or none.")
    return source.subset(np.linspace(0, len(source) - 1, samples).astype(np.int64))
