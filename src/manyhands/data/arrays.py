"""Samples that live in memory: the fastest source, and what MNIST, idx files and arrays become."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from manyhands.data.conversion import Layout, features, labels
from manyhands.data.normalisation import Normalisation, Statistic, normalisation
from manyhands.data.source import Indices, Source
from manyhands.errors import ConfigError


class ArraySource(Source):
    """Tensors of one length, gathered by row; the first is normalised on the way out.

    Neither copies nor changes the tensors it is given. Thread-safe; blocks for the gather alone.
    """

    def __init__(
        self, tensors: Sequence[torch.Tensor], normalisation: Normalisation | None = None
    ) -> None:
        self._tensors = tuple(tensors)
        self._normalisation = normalisation

    def __len__(self) -> int:
        return len(self._tensors[0])

    def fetch(self, indices: Indices, *, seed: int) -> tuple[torch.Tensor, ...]:
        rows = torch.from_numpy(indices)
        first, *rest = (tensor.index_select(0, rows) for tensor in self._tensors)
        if self._normalisation is not None:
            first = self._normalisation.apply(first)
        return (first, *rest)

    @property
    def sliceable(self) -> bool:
        return True

    def tensors(self) -> list[torch.Tensor]:
        return list(self._tensors)

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> ArraySource:
        expected = [(tensor.shape, tensor.dtype) for tensor in self._tensors]
        if [(tensor.shape, tensor.dtype) for tensor in tensors] != expected:
            raise ValueError("the new tensors differ from the old ones in number, shape or dtype")
        moved = copy.copy(self)
        moved._tensors = tuple(tensors)
        return moved


def arrays(
    x: Any,
    y: Any,
    *,
    layout: Layout = "auto",
    mean: Statistic | None = None,
    std: Statistic | None = None,
) -> ArraySource:
    """NumPy arrays or tensors as a source of (x, y) batches.

    Bytes stay bytes in memory and come out as float32 between 0 and 1; `mean` and `std` (a number,
    or one per channel) then normalise them, as they do real numbers. Integers wider than a byte
    come out as int64, for embeddings. Bytes in three dimensions are grey images, in four
    dimensions images with the channels first or last; everything else keeps its shape. `layout`
    overrides that: "NHW", "NCHW", "NHWC", or "plain" for the shape as it is.
    """
    samples = features(x, layout=layout)
    targets = labels(y, samples=len(samples))
    if samples.dtype == torch.int64:
        if mean is not None or std is not None:
            raise ConfigError("mean and std were given for x of integers: expected real numbers.")
        return ArraySource([samples, targets])
    highest = 255.0 if samples.dtype == torch.uint8 else 1.0
    channels = samples.shape[1] if samples.dim() == 4 else None
    scaling = normalisation(highest=highest, mean=mean, std=std, channels=channels)
    return ArraySource([samples, targets], scaling)
