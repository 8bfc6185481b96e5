"""Sources that stand on another source: some of its samples, or its images changed at random."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from manyhands.data.augment import Augment
from manyhands.data.source import Batch, Indices, Source
from manyhands.errors import ConfigError, DataError


class _View(Source):
    """What a view leaves to the source behind it."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def sliceable(self) -> bool:
        return self._source.sliceable

    @property
    def seeded(self) -> bool:
        return self._source.seeded

    def tensors(self) -> list[torch.Tensor]:
        return self._source.tensors()

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> Self:
        moved = copy.copy(self)
        moved._source = self._source.with_tensors(tensors)
        return moved


class Subset(_View):
    """Some of a source's samples, renumbered from 0."""

    def __init__(self, source: Source, indices: npt.ArrayLike) -> None:
        super().__init__(source)
        self._indices = _checked_indices(indices, samples=len(source))

    def __len__(self) -> int:
        return len(self._indices)

    def fetch(self, indices: Indices, *, seed: int) -> Batch:
        return self._source.fetch(self._indices[indices], seed=seed)


class Augmented(_View):
    """A source's images, changed at random; the seed of a fetch decides how."""

    def __init__(self, source: Source, augment: Augment) -> None:
        if not isinstance(augment, Augment):
            raise ConfigError(f"augmented() was given {augment!r}: expected a manyhands Augment.")
        # One fetch now, so that data that can't be augmented is refused before training starts.
        _check_images(source.fetch(np.zeros(1, dtype=np.int64), seed=0))
        super().__init__(source)
        self._augment = augment

    def __len__(self) -> int:
        return len(self._source)

    def fetch(self, indices: Indices, *, seed: int) -> tuple[Any, ...]:
        images, *rest = self._source.fetch(indices, seed=seed)
        return (self._augment.apply(images, seed=seed), *rest)


def split(source: Source, fraction: float, *, seed: int = 0) -> tuple[Source, Source]:
    """Two sources without a sample in common: the rest, and a random `fraction` for validation."""
    if not 0.0 < fraction < 1.0:
        raise ConfigError(f"fraction is {fraction}: expected a number between 0 and 1.")
    held_out = round(len(source) * fraction)
    if not 0 < held_out < len(source):
        raise DataError(
            f"{fraction} of {len(source)} samples is {held_out}: expected at least one sample on "
            "each side; change the fraction."
        )
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed)).numpy()
    return Subset(source, np.sort(order[held_out:])), Subset(source, np.sort(order[:held_out]))


def _checked_indices(indices: npt.ArrayLike, *, samples: int) -> Indices:
    chosen = np.asarray(indices)
    if chosen.dtype == np.bool_ and chosen.shape == (samples,):
        chosen = np.flatnonzero(chosen)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        raise DataError(
            f"a subset was asked for by {chosen.dtype} of shape {chosen.shape}: expected a list of "
            f"sample numbers, or a mask of length {samples}."
        )
    if not chosen.size:
        raise DataError("a subset of no samples was asked for: expected at least one.")
    if chosen.min() < 0 or chosen.max() >= samples:
        raise DataError(
            f"a subset was asked for with sample numbers from {chosen.min()} to {chosen.max()}: "
            f"expected 0 to {samples - 1}."
        )
    return chosen.astype(np.int64)


def _check_images(batch: Batch) -> None:
    images = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    if not isinstance(images, torch.Tensor) or images is batch:
        raise DataError(
            f"augmentation was asked for on batches of type {type(batch).__name__}: expected "
            "batches (images, labels, ...)."
        )
    if images.dim() != 4 or images.dtype != torch.float32:
        raise DataError(
            f"augmentation was asked for on samples of shape {tuple(images.shape[1:])} and dtype "
            f"{images.dtype}: expected float32 images (channels, height, width); for arrays of "
            "grey images pass layout='NHW'."
        )
