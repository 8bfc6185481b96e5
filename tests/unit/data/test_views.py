"""Subsets, splits and augmented sources: what they pass on and what they refuse."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from manyhands.data.arrays import arrays
from manyhands.data.augment import Augment
from manyhands.data.source import Source
from manyhands.data.torch_dataset import from_dataset
from manyhands.data.views import split
from manyhands.errors import ConfigError, DataError


def pictures(count: int = 10) -> Source:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 8, 8), dtype=np.uint8)
    return arrays(pixels, np.arange(count))


def numbers(source: Source) -> list[int]:
    labels: list[int] = source.fetch(np.arange(len(source)), seed=0)[1].tolist()
    return labels


def test_a_subset_renumbers_in_the_order_given() -> None:
    part = pictures().subset([7, 2, 2])
    assert len(part) == 3
    assert numbers(part) == [7, 2, 2]
    assert part.sliceable
    assert numbers(part.subset([2, 0])) == [2, 7]


def test_a_mask_is_a_subset_too() -> None:
    assert numbers(pictures(4).subset([True, False, False, True])) == [0, 3]


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0, 10], "from 0 to 10: expected 0 to 9"),
        ([-1], "from -1 to -1"),
        ([0.5], "float64"),
        ([], "float64 of shape"),
        (np.array([], dtype=int), "no samples"),
        ([[0, 1]], r"shape \(1, 2\)"),
        ([True, False], "mask of length 10"),
        (["a"], "expected a list of sample numbers"),
    ],
)
def test_wrong_subsets_are_refused(indices: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        pictures().subset(indices)


def test_a_split_loses_and_repeats_nothing() -> None:
    rest, held_out = split(pictures(10), 0.3, seed=5)
    assert (len(rest), len(held_out)) == (7, 3)
    assert sorted(numbers(rest) + numbers(held_out)) == list(range(10))
    again = split(pictures(10), 0.3, seed=5)
    assert numbers(again[1]) == numbers(held_out)
    others = {tuple(numbers(split(pictures(10), 0.3, seed=seed)[1])) for seed in range(5)}
    assert len(others) > 1


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_a_fraction_outside_0_and_1_is_refused(fraction: float) -> None:
    with pytest.raises(ConfigError, match="fraction is"):
        split(pictures(), fraction)


def test_a_split_with_an_empty_side_is_refused() -> None:
    with pytest.raises(DataError, match=r"0.01 of 10 samples is 0"):
        split(pictures(), 0.01)
    with pytest.raises(DataError, match=r"0.99 of 10 samples is 10"):
        split(pictures(), 0.99)


def test_an_augmented_source_changes_images_by_seed_and_keeps_labels() -> None:
    source = pictures().augmented(Augment(shift_pixels=3.0))
    some = np.arange(10)
    first, again, other = (source.fetch(some, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])
    assert first[1].tolist() == list(range(10))
    assert len(source) == 10
    assert source.sliceable


def test_views_pass_shared_storage_through() -> None:
    source = pictures().augmented(Augment.digits()).subset(range(5)).augmented(Augment.natural())
    shared = [tensor.clone().share_memory_() for tensor in source.tensors()]
    moved = source.with_tensors(shared)
    assert [a.data_ptr() for a in moved.tensors()] == [b.data_ptr() for b in shared]
    some = np.array([4, 1])
    assert torch.equal(moved.fetch(some, seed=3)[0], source.fetch(some, seed=3)[0])


def test_views_survive_pickling() -> None:
    source = pictures().subset([3, 4]).augmented(Augment.digits())
    copied = pickle.loads(pickle.dumps(source))
    some = np.array([0, 1])
    assert torch.equal(copied.fetch(some, seed=3)[0], source.fetch(some, seed=3)[0])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (arrays(np.zeros((3, 4)), [0, 1, 2]), r"shape \(4,\)"),
        (arrays(np.zeros((3, 8, 8)), [0, 1, 2]), "pass layout='NHW'"),
        (from_dataset(TensorDataset(torch.zeros(3, 1, 8, 8, dtype=torch.uint8))), "torch.uint8"),
        (from_dataset([{"x": 1}] * 2), "batches of type dict"),
        (from_dataset([torch.zeros(1, 8, 8)] * 2), "batches of type Tensor"),
    ],
)
def test_what_is_not_images_is_refused_before_training(source: Source, message: str) -> None:
    with pytest.raises(DataError, match=message):
        source.augmented(Augment.natural())


def test_what_is_not_an_augmentation_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a manyhands Augment"):
        pictures().augmented("flip")  # type: ignore[arg-type]
