"""What the driver makes of its replicas' buffers."""

from __future__ import annotations

import torch

from manyhands.strategies.downpour_driver.replica_buffers import merged_buffers


def test_statistics_are_averaged_by_samples_and_counters_take_the_largest() -> None:
    first = {"mean": torch.tensor([1.0]), "count": torch.tensor(3), "mask": torch.tensor([True])}
    second = {"mean": torch.tensor([5.0]), "count": torch.tensor(9), "mask": torch.tensor([False])}
    merged = merged_buffers([(300, first), (100, second)])
    assert float(merged["mean"]) == 2.0
    assert int(merged["count"]) == 9
    assert bool(merged["mask"]) is True


def test_a_buffer_without_a_common_shape_is_that_of_who_trained_most() -> None:
    merged = merged_buffers([(1, {"queue": torch.zeros(3)}), (2, {"queue": torch.ones(5)})])
    assert merged["queue"].shape == (5,)


def test_what_never_changes_is_kept_to_the_bit() -> None:
    table = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 1e3
    table[0] = -torch.inf
    merged = merged_buffers([(n, {"positions": table.clone()}) for n in (3, 7, 100)])
    assert torch.equal(merged["positions"], table)


def test_a_buffer_that_one_replica_has_not_made_yet_is_that_of_the_others() -> None:
    made = {"mean": torch.tensor([1.0]), "seen": torch.tensor([4.0])}
    merged = merged_buffers([(300, made), (100, {"mean": torch.tensor([5.0])})])
    assert float(merged["mean"]) == 2.0
    assert float(merged["seen"]) == 4.0


def test_nobody_trained_yet() -> None:
    assert merged_buffers([]) == {}
