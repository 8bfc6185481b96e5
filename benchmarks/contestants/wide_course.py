"""What everyone trains who is measured on a wide output layer: data, first weights, P@1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

import manyhands as mh
from benchmarks.contestants.wide_softmax import hidden_of
from manyhands.data.datasets.packages import packages
from manyhands.data.datasets.synthetic import synthetic_670k
from manyhands.data.sparse_source import SparseSource

PACKAGES, SYNTHETIC = "packages", "synthetic-670k"
HIDDEN = 128
_LOGITS_AT_ONCE = 1 << 27  # of an evaluation: half a gigabyte


@dataclass(frozen=True)
class WideSet:
    """The samples of a course; made once, and shared by the processes that train."""

    train: SparseSource
    test: SparseSource

    @property
    def features(self) -> int:
        return self.train.features.width

    @property
    def labels(self) -> int:
        assert isinstance(self.train.labels, mh.sparse.CSR)
        return self.train.labels.width


@dataclass(frozen=True)
class WideCourse:
    """Which samples, and the net that learns them; `scale` makes the synthetic set smaller."""

    data: str
    scale: float = 1.0
    train_samples: int | None = None
    test_samples: int = 2_000
    batch: int = 256
    rate: float = 0.003
    seed: int = 0
    share: str = "batch"
    sampling: mh.sparse.Sampling | None = None
    family: mh.sparse.HashFamily | None = None
    refresh: mh.sparse.Refresh | None = None
    narrow: bool = False  # weights of the wide layer as bfloat16

    def samples(self) -> WideSet:
        """Takes a while: half a minute for the whole synthetic set."""
        return WideSet(
            _source(self.data, "train", self.scale, self.train_samples),
            _source(self.data, "test", self.scale, self.test_samples),
        )

    def model(self, samples: WideSet) -> nn.Sequential:
        """The net with its first weights, the same for everyone."""
        torch.manual_seed(self.seed)
        return nn.Sequential(
            mh.sparse.SparseLinear(samples.features, HIDDEN),
            nn.ReLU(),
            mh.sparse.LSHLinear(
                HIDDEN,
                samples.labels,
                share=self.share,
                sampling=self.sampling,
                family=self.family,
                refresh=self.refresh,
                seed=self.seed,
            ),
        )


def random_only(course: WideCourse, samples: WideSet) -> WideCourse:
    """The same course with sets of the same size in which nobody was found by the tables.

    One table that nobody asks and nobody refreshes: it costs next to nothing.
    """
    usual = (course.sampling or mh.sparse.Sampling()).resolved(samples.labels, course.share)
    return replace(
        course,
        sampling=replace(usual, hardest=0, limit=0),
        family=mh.sparse.SimHash(hashes=1, tables=1),
        refresh=mh.sparse.Refresh(first=1_000_000_000),
    )


def _source(data: str, split: Any, scale: float, samples: int | None) -> SparseSource:
    if data == SYNTHETIC:
        return synthetic_670k(split, scale=scale, samples=samples)
    whole = packages(split)
    return whole if samples is None or samples >= len(whole) else some_of(whole, samples)


def some_of(source: SparseSource, samples: int) -> SparseSource:
    """Spread over all, because packages are in the order of the alphabet."""
    numbers = np.linspace(0, len(source) - 1, samples).astype(np.int64)
    return SparseSource(*source.fetch(numbers, seed=0))


@torch.no_grad()
def precision_at_1(parameters: Sequence[torch.Tensor], source: SparseSource) -> float:
    """The percentage of samples whose best label is one of their own.

    Parameters are weight and bias of the input and of the output layer.
    """
    features, hidden_bias, weight, bias = (parameter.detach() for parameter in parameters)
    at_once = max(1, _LOGITS_AT_ONCE // len(weight))
    hits = 0
    for first in range(0, len(source), at_once):
        x, y = source.features[first : first + at_once], source.labels[first : first + at_once]
        assert isinstance(y, mh.sparse.CSR)
        hidden = hidden_of(features, hidden_bias, x)
        best = torch.addmm(bias, hidden, weight.t()).argmax(1)
        hit = best.index_select(0, y.row_of_entries()) == y.columns
        hits += len(torch.unique(y.row_of_entries()[hit]))
    return 100.0 * hits / len(source)


def batches(source: SparseSource, size: int, *, epoch: int, seed: int) -> list[Any]:
    """The numbers of the samples of each batch of an epoch; a smaller last one is left out."""
    order = np.random.default_rng([seed, epoch]).permutation(len(source))
    return [order[first : first + size] for first in range(0, len(order) - size + 1, size)]
