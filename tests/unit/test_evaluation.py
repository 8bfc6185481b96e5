"""Evaluation with sparse rows and with outputs so wide that a usual batch would fill the memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands import evaluation, preflight
from manyhands.errors import ConfigError
from manyhands.evaluation import evaluate
from manyhands.replica.steps import LossStep
from manyhands.sparse.csr import CSR


class Wide(nn.Module):
    """Sums its few inputs into many outputs, and remembers how many samples came at once."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, features))
        self.seen: list[int] = []

    def forward(self, x: CSR) -> torch.Tensor:
        self.seen.append(len(x))
        return x.to_dense() @ self.weight.T


def softmax(outputs: torch.Tensor, labels: CSR) -> torch.Tensor:
    return -(outputs.log_softmax(1) * labels.to_dense()).sum(1).mean()


def data(outputs: int, samples: int = 100) -> mh.data.SparseSource:
    generator = np.random.default_rng(0)
    features = CSR.from_lists(generator.integers(0, 9, (samples, 2)).tolist(), 9)
    labels = CSR.from_lists(generator.integers(0, outputs, (samples, 1)).tolist(), outputs)
    return mh.data.sparse(features, labels)


def figures(outputs: int, batch_size: int = 64) -> tuple[dict[str, float], list[int]]:
    torch.manual_seed(0)
    model = Wide(9, outputs)
    found = evaluate(model, LossStep(softmax), data(outputs), ("p@1", "p@5"), batch_size=batch_size)
    return found, model.seen


def test_wide_outputs_come_a_few_samples_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, seen = figures(30)
    assert seen == [100]
    monkeypatch.setattr(evaluation, "_MOST_OUTPUTS", 30 * 12)
    few, seen = figures(30)
    assert max(seen) == 12
    assert sum(seen) == 104  # four of them twice, to see how wide the outputs are
    assert few == pytest.approx(usual)


def test_one_sample_at_a_time_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "_MOST_OUTPUTS", 10)
    assert set(figures(30)[1][1:]) == {1}


def test_many_rows_that_are_no_outputs_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "_MOST_OUTPUTS", 10_000)
    model = nn.Sequential(nn.Embedding(1000, 4), nn.Flatten(), nn.Linear(8, 3))
    source = mh.data.arrays(np.zeros((300, 2), dtype=np.int64), np.zeros(300, dtype=np.int64))
    step = LossStep(nn.CrossEntropyLoss())
    assert evaluation._samples_at_once(model, step, source, 64) == 256


def test_errors_speak_of_sparse_batches() -> None:
    source = data(30)
    with pytest.raises(ConfigError, match=r"\(CSR\[4, 9\], CSR\[4, 30\]\)"):
        preflight.check_validation(
            nn.Linear(9, 30), LossStep(nn.CrossEntropyLoss()), source, ("p@1",)
        )
    with pytest.raises(ConfigError, match="use p@1"):
        preflight.check_validation(Wide(9, 30), LossStep(softmax), source, ("accuracy",))
