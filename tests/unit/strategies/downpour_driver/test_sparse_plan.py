"""What Downpour decides for nets with sparse gradients, before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.parameter_server.shard_map import Form
from manyhands.replica.steps import LossStep
from manyhands.strategies.downpour_driver.plan import DownpourPlan
from manyhands.strategies.downpour_replica.replica import listening_layers
from manyhands.strategies.strategy import TrainingJob

LABELS, FEATURES, SAMPLES = 5000, 400, 64


def wide(share: str = "batch") -> nn.Sequential:
    torch.manual_seed(0)
    sampling = mh.sparse.Sampling(limit=100, floor=150)
    layer = mh.sparse.LSHLinear(16, LABELS, sampling=sampling, share=share)
    first, second = mh.sparse.SparseLinear(FEATURES, 64), nn.Linear(64, 16)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), layer)


def plan(model: nn.Module, rule: mh.optim.Rule | None = None, **options: Any) -> DownpourPlan:
    features = mh.sparse.CSR.from_lists([[n, n + 1] for n in range(SAMPLES)], width=FEATURES)
    data = mh.data.sparse(features, torch.arange(SAMPLES) * 7)
    job = TrainingJob(
        model=model,
        step=LossStep(mh.sparse.LSHSoftmaxLoss()),
        rule=rule or mh.optim.Adam(lr=0.01),
        schedule=mh.optim.Constant(),
        source=data,
        sample=data.fetch(torch.arange(4).numpy(), seed=0),
        batch_size=32,
        epochs=1,
        seed=0,
        shuffle=True,
        ema=None,
        emit=lambda event: None,
    )
    return DownpourPlan(job, mh.Downpour(replicas=2, workers=3, **options))


def test_gradients_as_rows_through_the_fast_path() -> None:
    made = plan(wide())
    assert made.push == "gradients"
    forms = {name: choice.form for name, choice in made.choices.items()}
    rows = [name for name, form in forms.items() if form is Form.ROWS]
    assert rows == ["0.weight", "4.weight", "4.bias"]
    assert {form for name, form in forms.items() if name not in rows} == {Form.DELTA}
    assert made.fast_path is not None
    assert (made.replica_settings.workers, made.replica_settings.threads) == (1, 3)
    assert made.job.batch_size == 16  # a batch is shared by replicas, not by threads
    assert "2 replicas of 3 threads" in made.in_words(secured=False)[0]


def test_a_set_that_a_batch_shares_does_not_grow_with_it() -> None:
    """150 rows for a batch, however many samples; the input layer touches two for each of them."""
    made = plan(wide(), push_every=2)
    assert made.choices["4.weight"].push_bytes < 2 * 160 * (4 * 16 + 4)
    assert made.choices["0.weight"].push_bytes == 2 * 16 * 5 // 4 * (4 * 64 + 4)


@pytest.mark.parametrize(
    ("model", "options", "why"),
    [
        (wide("sample"), {}, "gradients of a sample by itself"),
        (wide(), {"forms": {"2.weight": "factors"}}, "factors of linear layers"),
        (nn.Sequential(wide()[0], nn.Tanh(), *wide()[2:]), {}, "not a ReLU"),
    ],
)
def test_otherwise_autograd(model: nn.Module, options: dict[str, Any], why: str) -> None:
    made = plan(model, **options)
    assert made.fast_path is None
    assert made.push == "gradients"
    assert made.choices["4.weight"].form is Form.ROWS
    assert (made.replica_settings.workers, made.replica_settings.threads) == (3, 1)
    assert why in made.in_words(secured=False)[0]


def test_moved_weights_when_asked_for() -> None:
    made = plan(wide("sample"), push="weights")
    assert made.push == "weights"
    assert {choice.form for choice in made.choices.values()} == {Form.DELTA}
    assert made.fast_path is not None  # the rule is applied here: no gradient is kept


def test_clipping_needs_autograd() -> None:
    made = plan(wide(), mh.optim.Adagrad(lr=0.1, clip_norm=1.0))
    assert made.fast_path is None
    assert made.push == "gradients"


def test_layers_hear_of_their_own_rows() -> None:
    model = wide()
    assert listening_layers(model) == {"4.weight": model[4]}
    assert listening_layers(model[4]) == {"weight": model[4]}
    assert listening_layers(nn.Linear(2, 2)) == {}
