"""Any map-style `torch.utils.data.Dataset` as a source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from manyhands.data.arrays import ArraySource
from manyhands.data.source import Batch, Indices, Source
from manyhands.errors import DataError

Collate = Callable[[list[Any]], Batch]


class DatasetSource(Source):
    """A dataset's samples, read one by one and collated.

    As safe to pickle, and as fast, as the dataset is. A dataset that is random draws from its own
    generators: the seed of a fetch doesn't reach it. What its code raises passes through unchanged.
    """

    def __init__(self, dataset: Dataset[Any], collate: Collate | None = None) -> None:
        self._dataset = dataset
        self._collate = collate
        self._length = _checked_length(dataset)
        # Decided once, from the first sample: what follows is taken to be of the same kind.
        self._sliceable = collate is None and _is_plain_sample(dataset[0])

    def __len__(self) -> int:
        return self._length

    def fetch(self, indices: Indices, *, seed: int) -> Batch:
        samples = self._read(indices.tolist())
        if self._collate is not None:
            return self._collate(samples)
        try:
            batch = default_collate(samples)
        except (RuntimeError, TypeError) as error:
            raise DataError(
                f"samples {_listed(indices)} of {type(self._dataset).__name__} don't fit in one "
                f"batch ({error}): give samples one shape, or pass collate=."
            ) from error
        return tuple(batch) if self._sliceable else batch

    @property
    def sliceable(self) -> bool:
        return self._sliceable

    @property
    def seeded(self) -> bool:
        return False

    def _read(self, indices: list[int]) -> list[Any]:
        read_many = getattr(self._dataset, "__getitems__", None)  # torch's own way to read a batch
        if read_many is not None:
            return list(read_many(indices))
        return [self._dataset[index] for index in indices]


def from_dataset(dataset: Any, *, collate: Collate | None = None) -> Source:
    """A source over a map-style dataset; `collate` joins a list of samples into a batch.

    A `TensorDataset` becomes an array source, which gives the same batches faster.
    """
    if isinstance(dataset, IterableDataset):
        raise DataError(
            f"{type(dataset).__name__} is an IterableDataset, which has no sample numbers: "
            "expected a map-style dataset with __getitem__ and __len__."
        )
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise DataError(
            f"{type(dataset).__name__} lacks __getitem__ or __len__: expected a map-style dataset."
        )
    if type(dataset) is TensorDataset and collate is None and _checked_length(dataset):
        return ArraySource([tensor.detach().cpu().contiguous() for tensor in dataset.tensors])
    return DatasetSource(dataset, collate)


def _checked_length(dataset: Any) -> int:
    try:
        length = len(dataset)
    except (TypeError, NotImplementedError):
        raise DataError(
            f"{type(dataset).__name__} can't tell its length: expected a dataset with __len__."
        ) from None
    if length == 0:
        raise DataError(f"{type(dataset).__name__} is empty: expected at least one sample.")
    return length


def _is_plain_sample(sample: Any) -> bool:
    """Whether samples collate to a sequence of tensors over samples."""
    kinds = (torch.Tensor, np.ndarray, np.generic, int, float)
    if type(sample) not in (tuple, list) or not sample:
        return False
    return all(isinstance(part, kinds) for part in sample)


def _listed(indices: Sequence[int] | Indices, most: int = 8) -> str:
    shown = ", ".join(str(int(index)) for index in indices[:most])
    return shown if len(indices) <= most else f"{shown}, ..."
