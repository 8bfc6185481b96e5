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


def test_nobody_trained_yet() -> None:
    assert merged_buffers([]) == {}
