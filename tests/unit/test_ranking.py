"""Precision and nDCG of the first guesses, against sums done by hand and a plain loop."""

from __future__ import annotations

import gc
import math

import numpy as np
import pytest
import torch

from manyhands import metrics, ranking
from manyhands.errors import ConfigError
from manyhands.sparse.csr import CSR

OUTPUTS = torch.tensor(
    [
        [9.0, 8.0, 7.0, 6.0, 5.0, 4.0],  # guesses 0 1 2 3 4
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],  # guesses 5 4 3 2 1
        [0.0, 9.0, 0.0, 8.0, 0.0, 7.0],  # guesses 1 3 5
    ]
)
LABELS = CSR.from_lists([[0, 2, 5], [4], []], 6)


def measure(name: str, outputs: torch.Tensor, targets: CSR | torch.Tensor, size: int = 2) -> float:
    metric = metrics.start([name])[name]
    for start in range(0, len(outputs), size):
        metric.update(outputs[start : start + size], targets[start : start + size])
    return metric.value()


def test_precision_is_the_share_of_hits_among_the_first() -> None:
    assert measure("p@1", OUTPUTS, LABELS) == pytest.approx(1 / 3)
    assert measure("p@3", OUTPUTS, LABELS) == pytest.approx((2 / 3 + 1 / 3 + 0) / 3)
    assert measure("p@5", OUTPUTS, LABELS) == pytest.approx((2 / 5 + 1 / 5 + 0) / 3)


def test_ndcg_counts_early_hits_more() -> None:
    second, third = 1 / math.log2(3), 1 / math.log2(4)
    assert measure("ndcg@1", OUTPUTS, LABELS) == pytest.approx(1 / 3)
    first = (1 + third) / (1 + second + third)
    assert measure("ndcg@3", OUTPUTS, LABELS) == pytest.approx((first + second + 0) / 3)
    assert measure("ndcg@5", OUTPUTS, LABELS) == pytest.approx((first + second + 0) / 3)


def test_all_metrics_agree_with_a_plain_loop() -> None:
    generator = np.random.default_rng(3)
    outputs = torch.from_numpy(generator.standard_normal((60, 40)).astype(np.float32))
    sets = [sorted(set(generator.integers(0, 40, generator.integers(0, 9)))) for _ in range(60)]
    labels = CSR.from_lists([[int(label) for label in one] for one in sets], 40)
    for k in (1, 3, 5):
        precision, gain = 0.0, 0.0
        for row, wanted in zip(outputs, sets, strict=True):
            guesses = np.argsort(-row.numpy())[:k]
            found = [guess in wanted for guess in guesses]
            precision += sum(found) / k / 60
            best = sum(1 / math.log2(i + 2) for i in range(min(k, len(wanted))))
            got = sum(hit / math.log2(i + 2) for i, hit in enumerate(found))
            gain += got / best / 60 if best else 0.0
        assert measure(f"p@{k}", outputs, labels, 7) == pytest.approx(precision)
        assert measure(f"ndcg@{k}", outputs, labels, 7) == pytest.approx(gain)


def test_one_class_for_each_sample() -> None:
    classes = torch.tensor([1, 5, 0])
    assert measure("p@1", OUTPUTS, classes) == pytest.approx(1 / 3)
    assert measure("p@3", OUTPUTS, classes) == pytest.approx(2 / 9)
    assert measure("ndcg@3", OUTPUTS, classes) == pytest.approx((1 / math.log2(3) + 1) / 3)


def test_fewer_outputs_than_guesses() -> None:
    assert measure("p@5", OUTPUTS[:, :2], CSR.from_lists([[0], [1], [0, 1]], 2)) == pytest.approx(
        (1 + 1 + 2) / 15
    )


def test_labels_that_the_model_does_not_have_are_misses() -> None:
    few, many = CSR.from_lists([[0], [2]], 3), CSR.from_lists([[7]], 9)
    assert measure("p@1", OUTPUTS[1:3], few) == 0.0  # the first guesses label 5 of 3
    assert measure("p@5", OUTPUTS[:1], many) == 0.0


def test_the_best_are_found_once_for_all_metrics_and_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outputs = OUTPUTS.clone()
    started = metrics.start(["p@1", "p@5", "ndcg@5"])
    calls = []
    topk = torch.Tensor.topk
    monkeypatch.setattr(torch.Tensor, "topk", lambda *a, **k: (calls.append(1), topk(*a, **k))[1])
    for metric in started.values():
        metric.update(outputs, LABELS)
    assert len(calls) == 1
    outputs.neg_()  # other numbers in the same tensor are other guesses
    started["p@1"].update(outputs, LABELS)
    assert len(calls) == 2
    del outputs
    gc.collect()
    assert len(ranking._best_of) == 0


def test_other_metrics_say_what_to_use_for_label_sets() -> None:
    for name in ("accuracy", "top5", "f1"):
        with pytest.raises(ConfigError, match="use p@1"):
            measure(name, OUTPUTS, LABELS)


def test_a_function_sees_all_label_sets_at_once() -> None:
    seen = []

    def look(outputs: torch.Tensor, targets: CSR) -> float:
        seen.append(targets.to_dense())
        return float(len(outputs))

    metric = metrics.start([look])["look"]
    metric.update(OUTPUTS[:2], LABELS[:2])
    metric.update(OUTPUTS[2:], LABELS[2:])
    assert metric.value() == 3.0
    assert torch.equal(seen[0], LABELS.to_dense())
