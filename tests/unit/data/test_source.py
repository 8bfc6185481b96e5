"""The source interface's own parts: the order of an epoch, and what sources without tensors say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from manyhands.data.source import Batch, Indices, Source, epoch_order


class Squares(Source):
    def __len__(self) -> int:
        return 5

    def fetch(self, indices: Indices, *, seed: int) -> Batch:
        return {"squares": indices**2}


def test_epoch_order_is_torchs_permutation_of_seed_plus_epoch() -> None:
    expected = torch.randperm(100, generator=torch.Generator().manual_seed(7 + 3))
    order = epoch_order(100, epoch=3, seed=7)
    assert order.dtype == np.int64
    assert order.tolist() == expected.tolist()


def test_epoch_order_differs_between_epochs_and_can_be_switched_off() -> None:
    orders = [epoch_order(50, epoch=epoch, seed=0).tolist() for epoch in (0, 1)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == list(range(50))
    assert epoch_order(4, epoch=9, seed=1, shuffle=False).tolist() == [0, 1, 2, 3]


def test_a_source_need_only_say_its_length_and_fetch() -> None:
    source = Squares()
    assert not source.sliceable
    assert source.tensors() == []
    assert source.with_tensors([]) is source
    with pytest.raises(ValueError, match="holds no tensors"):
        source.with_tensors([torch.zeros(1)])
    part = source.subset([4, 2])
    assert part.fetch(np.array([0, 1]), seed=0)["squares"].tolist() == [16, 4]
