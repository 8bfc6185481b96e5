"""What the driver makes of its replicas' buffers."""

from __future__ import annotations

import torch
from torch import nn

from manyhands.strategies.downpour_driver.replica_buffers import merged_buffers, statistics_of


def test_statistics_are_those_of_normalisation_layers() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)
            self.body = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, affine=False))
            self.plain = nn.LayerNorm(3)
            self.register_buffer("mask", torch.ones(3))

    assert statistics_of(Net()) == {
        f"{path}.{name}"
        for path in ("norm", "body.1")
        for name in ("running_mean", "running_var", "num_batches_tracked")
    }
    assert "running_mean" in statistics_of(nn.BatchNorm2d(3))


def test_statistics_are_averaged_by_samples_and_counters_take_the_largest() -> None:
    first = {"mean": torch.tensor([1.0]), "count": torch.tensor(3)}
    second = {"mean": torch.tensor([5.0]), "count": torch.tensor(9)}
    merged = merged_buffers([(300, first), (100, second)], {"mean", "count"})
    assert float(merged["mean"]) == 2.0
    assert int(merged["count"]) == 9


def test_everything_else_is_that_of_who_trained_most() -> None:
    directions = torch.eye(2)
    few = {"u": directions[0], "queue": torch.zeros(3), "at": torch.tensor(9)}
    many = {"u": directions[1], "queue": torch.ones(5), "at": torch.tensor(2)}
    merged = merged_buffers([(1, few), (2, many)], {"norm.running_mean"})
    assert merged.keys() == many.keys()
    assert all(torch.equal(merged[name], many[name]) for name in many)


def test_statistics_that_never_change_are_kept_to_the_bit() -> None:
    frozen = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 1e3
    merged = merged_buffers([(n, {"mean": frozen.clone()}) for n in (3, 7, 100)], {"mean"})
    assert torch.equal(merged["mean"], frozen)


def test_a_buffer_that_one_replica_has_not_made_yet_is_that_of_the_others() -> None:
    made = {"mean": torch.tensor([1.0]), "seen": torch.tensor([4.0])}
    merged = merged_buffers([(300, made), (100, {})], {"mean"})
    assert float(merged["mean"]) == 1.0
    assert float(merged["seen"]) == 4.0


def test_nobody_trained_yet() -> None:
    assert merged_buffers([], set()) == {}
