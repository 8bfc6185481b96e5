"""Samples with few of many features, and few of many labels: rows in compressed form, in memory."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from manyhands.data.conversion import labels as dense_labels
from manyhands.data.source import Indices, Source
from manyhands.errors import DataError
from manyhands.sparse.csr import CSR


class SparseSource(Source):
    """Batches (features, labels) of rows in compressed form.

    `features` and `labels` are all of them; the widths are those of the layers to come
    (`source.features.width`). Neither copies nor changes what it is given. Thread-safe.
    """

    def __init__(self, features: CSR, labels: CSR | torch.Tensor) -> None:
        if len(features) != len(labels):
            raise DataError(
                f"features have {len(features)} rows and labels {len(labels)}: expected one row of "
                "each for every sample."
            )
        if len(features) == 0:
            raise DataError("the features have no rows: expected at least one sample.")
        self.features = features
        self.labels = labels

    def __len__(self) -> int:
        return len(self.features)

    def fetch(self, indices: Indices, *, seed: int) -> tuple[CSR, CSR | torch.Tensor]:
        rows = torch.from_numpy(indices)
        if isinstance(self.labels, CSR):
            return self.features.take(rows), self.labels.take(rows)
        return self.features.take(rows), self.labels.index_select(0, rows)

    @property
    def sliceable(self) -> bool:
        return True

    def tensors(self) -> list[torch.Tensor]:
        labels = self.labels.tensors() if isinstance(self.labels, CSR) else [self.labels]
        return [*self.features.tensors(), *labels]

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> SparseSource:
        expected = [(tensor.shape, tensor.dtype) for tensor in self.tensors()]
        if [(tensor.shape, tensor.dtype) for tensor in tensors] != expected:
            raise ValueError("the new tensors differ from the old ones in number, shape or dtype")
        first = len(self.features.tensors())
        moved = copy.copy(self)
        moved.features = self.features.with_tensors(list(tensors[:first]))
        if isinstance(self.labels, CSR):
            moved.labels = self.labels.with_tensors(list(tensors[first:]))
        else:
            moved.labels = tensors[first]
        return moved


def sparse(features: Any, labels: Any) -> SparseSource:
    """Sparse features with their labels as a source of batches.

    Each may be a `mh.sparse.CSR`, a sparse torch tensor (CSR or COO) or a SciPy matrix; labels may
    also be an array with one class for each sample, where there is one.
    """
    rows = as_csr(features)
    if rows is None:
        raise DataError(
            f"features are of type {type(features).__name__}: expected a manyhands.sparse.CSR, a "
            "sparse torch tensor or a SciPy matrix; for dense ones use manyhands.data.arrays."
        )
    targets = as_csr(labels)
    if targets is None:
        return SparseSource(rows, dense_labels(labels, samples=len(rows)))
    return SparseSource(rows, targets)


def packed(
    counts: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int32],
    values: npt.NDArray[np.float32] | None,
    width: int,
) -> CSR:
    """Rows with this many entries each, whose columns follow one another; without a check or a
    copy, for entries that are right by construction."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return CSR.unchecked(
        torch.from_numpy(offsets),
        torch.from_numpy(columns),
        None if values is None else torch.from_numpy(values),
        width,
    )


def as_csr(value: Any) -> CSR | None:
    """`value` as rows in compressed form, or None when it is not sparse."""
    if isinstance(value, CSR):
        return value
    if isinstance(value, torch.Tensor):
        return CSR.from_torch(value) if value.layout != torch.strided else None
    return CSR.from_scipy(value) if hasattr(value, "tocsr") else None
