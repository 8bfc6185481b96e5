"""The source interface: where samples come from, seen from a trainer (Adam, section 3.1).

A trainer knows only this: how many samples there are, and that a set of them can be fetched by
number as one batch. Arrays in memory, files, a `torch.utils.data.Dataset` and, later, a data server
on another machine all stand behind it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from manyhands.data.augment import Augment

Indices = npt.NDArray[np.int64]
Batch = Any  # a tuple of tensors for most; whatever a Dataset's samples collate to for the rest


class Source(ABC):
    """Samples by number.

    Safe to pickle into another process; `fetch` is called from one background thread at a time and
    may block. Raises `DataError` for data that can't be read.
    """

    @abstractmethod
    def __len__(self) -> int:
        """How many samples an epoch has."""

    @abstractmethod
    def fetch(self, indices: Indices, *, seed: int) -> Batch:
        """These samples as one batch, in this order.

        `seed` fixes whatever is random about them (augmentation), so that the same call gives the
        same batch on every machine.
        """

    @property
    def sliceable(self) -> bool:
        """Whether a batch is a tuple of tensors over samples, so that one fetch can serve several
        small batches."""
        return False

    @property
    def seeded(self) -> bool:
        """Whether the seed fixes everything random about a fetch; a user's data set may draw from
        generators of its own."""
        return True

    def tensors(self) -> list[torch.Tensor]:
        """The large tensors behind this source, which processes can share instead of copying."""
        return []

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> Source:
        """The same source on other storage: `tensors` in the order of `tensors()`."""
        if tensors:
            raise ValueError(f"{type(self).__name__} holds no tensors, but {len(tensors)} came")
        return self

    def subset(self, indices: npt.ArrayLike) -> Source:
        """Only these samples, renumbered from 0 in the order given; a mask works as well."""
        from manyhands.data.views import Subset  # a view is itself a Source

        return Subset(self, indices)

    def augmented(self, augment: Augment) -> Source:
        """The same images, changed at random at each fetch. Refuses data that isn't images."""
        from manyhands.data.views import Augmented  # a view is itself a Source

        return Augmented(self, augment)


def epoch_order(samples: int, *, epoch: int, seed: int, shuffle: bool = True) -> Indices:
    """The order in which an epoch visits its samples: the same on every machine.

    It is `torch.randperm(samples, generator=torch.Generator().manual_seed(seed + epoch))`, so that
    a plain PyTorch loop can visit the same batches.
    """
    if not shuffle:
        return np.arange(samples, dtype=np.int64)
    generator = torch.Generator().manual_seed(seed + epoch)
    order: Indices = torch.randperm(samples, generator=generator).numpy()
    return order
