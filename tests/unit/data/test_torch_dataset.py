"""Datasets as sources: the same batches as a DataLoader's, and refusals for what has no numbers."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from manyhands.data.arrays import ArraySource
from manyhands.data.torch_dataset import from_dataset
from manyhands.errors import DataError

Pair = namedtuple("Pair", ["image", "label"])


class Samples(Dataset[Any]):
    """A dataset over a list."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Endless(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class Broken(Samples):
    def __getitem__(self, index: int) -> Any:
        if index == 2:
            raise KeyError("the disk is gone")
        return super().__getitem__(index)


def pairs(count: int = 6) -> list[Any]:
    return [(torch.full((2, 3), float(i)), i) for i in range(count)]


def test_batches_equal_those_of_a_dataloader() -> None:
    dataset = Samples(pairs())
    source = from_dataset(dataset)
    batch = source.fetch(np.array([0, 1, 2]), seed=0)
    expected = next(iter(DataLoader(dataset, batch_size=3)))
    assert isinstance(batch, tuple)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(batch, expected, strict=True))
    assert source.sliceable
    assert len(source) == 6


@pytest.mark.parametrize(
    ("sample", "sliceable"),
    [
        ((np.zeros(3), 1.5), True),
        ([torch.zeros(3), np.int64(1)], True),
        (torch.zeros(3), False),
        ({"x": torch.zeros(3)}, False),
        ((torch.zeros(3), "name"), False),
        ((torch.zeros(3), (1, 2)), False),
        (Pair(torch.zeros(3), 1), False),
    ],
)
def test_only_tuples_of_tensors_and_numbers_are_sliceable(sample: Any, sliceable: bool) -> None:
    source = from_dataset(Samples([sample, sample]))
    assert source.sliceable is sliceable
    batch = source.fetch(np.array([0, 1, 0]), seed=0)
    if sliceable:
        assert [len(part) for part in batch] == [3, 3]
    if isinstance(sample, Pair):
        assert batch.image.shape == (3, 3)


def test_a_collate_of_the_users_is_used() -> None:
    source = from_dataset(Samples(["a", "bb"]), collate=lambda samples: "-".join(samples))
    assert source.fetch(np.array([1, 0]), seed=0) == "bb-a"
    assert not source.sliceable


def test_datasets_that_read_many_at_once_are_asked_to() -> None:
    source = from_dataset(Subset(Samples(pairs()), [5, 3]))
    assert source.fetch(np.array([1, 0]), seed=0)[1].tolist() == [3, 5]


def test_a_tensor_dataset_becomes_arrays_unchanged() -> None:
    dataset = TensorDataset(
        torch.arange(4, dtype=torch.uint8), torch.arange(4.0, dtype=torch.float64)
    )
    source = from_dataset(dataset)
    assert isinstance(source, ArraySource)
    first, second = source.fetch(np.array([2]), seed=0)
    assert (first.dtype, second.dtype) == (torch.uint8, torch.float64)
    assert (first.tolist(), second.tolist()) == ([2], [2.0])


def test_samples_of_different_shapes_are_named() -> None:
    source = from_dataset(Samples([(torch.zeros(2), 0), (torch.zeros(3), 1)]))
    with pytest.raises(DataError, match=r"samples 1, 0 of Samples don't fit .*pass collate="):
        source.fetch(np.array([1, 0]), seed=0)


def test_what_the_users_code_raises_passes_unchanged() -> None:
    source = from_dataset(Broken(pairs()))
    with pytest.raises(KeyError, match="the disk is gone"):
        source.fetch(np.array([1, 2]), seed=0)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Stream(), "Stream is an IterableDataset"),
        (Endless(), "Endless lacks __getitem__ or __len__"),
        (Samples([]), "Samples is empty"),
        (TensorDataset(torch.zeros(0, 2)), "TensorDataset is empty"),
        (42, "int lacks"),
    ],
)
def test_what_has_no_sample_numbers_is_refused(dataset: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_dataset(dataset)
