"""The fast path against autograd on the same model: same seed, same batches, same weights."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from manyhands.errors import DataError
from manyhands.optim.rules import SGD, Adagrad, Adam, AdamW, Rule
from manyhands.replica.shared_weights import share
from manyhands.replica.sparse_step import SparseStep
from manyhands.replica.steps import AutogradStep, LossStep
from manyhands.sparse import (
    CSR,
    DWTA,
    LSHLinear,
    LSHSigmoidLoss,
    LSHSoftmaxLoss,
    Refresh,
    RowOptimizer,
    Sampling,
    SimHash,
    SparseLinear,
)
from manyhands.sparse.fast_path import NoFastPath, describe, is_wide
from manyhands.sparse.fast_trainer import FastTrainer, row_matrices

FEATURES, NEURONS = 60, 1500
RULES = [SGD(lr=0.1), Adagrad(lr=0.05), Adam(lr=0.01), AdamW(lr=0.01, weight_decay=0.0)]
NEVER = Refresh(first=10**6)


def wide(inputs: int, **settings: Any) -> LSHLinear:
    settings = {
        "family": DWTA(hashes=2, tables=8),
        "sampling": Sampling(limit=80, floor=60),
        "refresh": NEVER,
        "threads": 1,
        **settings,
    }
    return LSHLinear(inputs, NEURONS, **settings)


def net(*hidden: int, sparse: bool = True, **settings: Any) -> nn.Sequential:
    torch.manual_seed(3)
    layers: list[nn.Module] = []
    for at, (inputs, outputs) in enumerate(zip((FEATURES, *hidden), hidden, strict=False)):
        first = sparse and at == 0
        layers += [
            SparseLinear(inputs, outputs) if first else nn.Linear(inputs, outputs),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, wide(hidden[-1], **settings))


def batches(count: int, *, sparse: bool = True) -> tuple[Any, CSR]:
    random = np.random.default_rng(8)
    features = [random.integers(0, FEATURES, random.integers(1, 9)) for _ in range(count)]
    labels = [random.choice(NEURONS, random.integers(0, 4), replace=False) for _ in range(count)]
    inputs: Any = torch.from_numpy(random.normal(size=(count, FEATURES)).astype(np.float32))
    if sparse:
        entries = np.concatenate(features).astype(np.int32)
        values = random.normal(size=len(entries)).astype(np.float32)
        inputs = CSR(_offsets(features), entries, values, FEATURES)
    return inputs, CSR(_offsets(labels), np.concatenate(labels).astype(np.int32), None, NEURONS)


def _offsets(rows: list[Any]) -> torch.Tensor:
    return torch.tensor([0, *np.cumsum([len(row) for row in rows])], dtype=torch.int64)


def fresh_states(model: nn.Module, rule: Rule) -> dict[str, list[torch.Tensor]]:
    return {
        name: [torch.full_like(p, rule.state_start(state)).detach() for state in rule.states]
        for name, p in model.named_parameters()
    }


def fast_step(model: nn.Module, loss: nn.Module, rule: Rule, batch: Any, size: int) -> SparseStep:
    path = describe(model, loss, rule, batch)
    states = fresh_states(model, rule)
    return SparseStep(FastTrainer(path, model, rule, states, max_batch=size, threads=2))


def autograd_step(model: nn.Module, loss: nn.Module, rule: Rule) -> AutogradStep:
    return AutogradStep(model, LossStep(loss), rule, fresh_states(model, rule))


def build_tables(*models: nn.Sequential) -> None:
    """Before the first batch, which autograd would otherwise train on random neurons."""
    for model in models:
        assert model[-1].index is not None


def train(step: Any, batch: Any, size: int, rule: Rule, *, count: int) -> np.ndarray:
    rates = np.full(-(-count // size), rule.lr)
    return np.asarray(step.train(batch, size, rates, 1))


def compare(model: nn.Sequential, loss: nn.Module, rule: Rule, *, size: int, sparse: bool) -> None:
    count = 2 * size + max(1, size // 2)
    other = copy.deepcopy(model)
    batch = batches(count, sparse=sparse)
    build_tables(model, other)
    seen = train(fast_step(model, loss, rule, batch, size), batch, size, rule, count=count)
    expected = train(autograd_step(other, loss, rule), batch, size, rule, count=count)
    np.testing.assert_allclose(seen, expected, rtol=1e-4)
    for name, parameter in other.named_parameters():
        torch.testing.assert_close(
            model.get_parameter(name), parameter, rtol=1e-3, atol=2e-4, msg=lambda m, n=name: n + m
        )


@pytest.mark.parametrize("share_of", ["batch", "sample"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_rows_beside_their_states_train_as_rows_apart(rule: Rule, share_of: str) -> None:
    """With tables that are refreshed on the way, and weights that decay where the rule can."""
    if isinstance(rule, AdamW):
        rule = replace(rule, weight_decay=0.1)
    refresh = Refresh(first=1, new_functions_every=2, beside=False)
    apart = net(33, share=share_of, refresh=refresh)
    beside, batch = copy.deepcopy(apart), batches(60)
    path = describe(apart, LSHSoftmaxLoss(), rule, batch)
    _, weights = share(beside, rule, averaging=False, by_rows=row_matrices(path, beside))
    assert beside[-1].weight.is_contiguous() == (not rule.states)
    losses = []
    for model, states in ((apart, fresh_states(apart, rule)), (beside, weights.states_of(0))):
        trainer = FastTrainer(path, model, rule, states, max_batch=20, threads=1)
        step = SparseStep(trainer)
        losses.append([train(step, batch, 20, rule, count=60) for _ in range(3)])
    np.testing.assert_array_equal(*losses)
    assert all(
        torch.equal(*pair) for pair in zip(apart.parameters(), beside.parameters(), strict=True)
    )
    x = torch.relu(torch.randn(5, 33))
    for exact in (True, False):
        found = [model[-1].topk(x, 3, exact=exact) for model in (apart, beside)]
        torch.testing.assert_close(*found)


def test_matrices_whose_rows_are_in_pieces_are_refused() -> None:
    model, rule = net(33), Adam(lr=0.01)
    path = describe(model, LSHSoftmaxLoss(), rule, batches(2))
    states = fresh_states(model, rule)
    model[-1].weight.data = torch.zeros(NEURONS, 66)[:, :33]
    with pytest.raises(ValueError, match="rows are 33 floats apart; expected 66"):
        FastTrainer(path, model, rule, states, max_batch=20, threads=1)
    model[-1].weight.data = torch.zeros(33, NEURONS).t()
    with pytest.raises(ValueError, match="expected rows in one piece each"):
        FastTrainer(path, model, rule, states, max_batch=20, threads=1)


@pytest.mark.parametrize("loss", [LSHSoftmaxLoss(), LSHSigmoidLoss()])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_shared_active_set_trains_as_autograd_does(rule: Rule, loss: nn.Module) -> None:
    compare(net(33), loss, rule, size=20, sparse=True)


@pytest.mark.parametrize("loss", [LSHSoftmaxLoss(), LSHSigmoidLoss()])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_an_active_set_for_each_sample_trains_as_autograd_does(rule: Rule, loss: nn.Module) -> None:
    """In batches of one: autograd moves the weights once per batch, the fast path per sample."""
    compare(net(33, share="sample"), loss, rule, size=1, sparse=True)


def test_each_sample_of_a_batch_has_the_active_set_that_autograd_gives_it() -> None:
    """At a rate of zero, so that it doesn't matter when the weights move."""
    compare(net(33, share="sample"), LSHSoftmaxLoss(), SGD(lr=0.0), size=20, sparse=True)


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("hidden", [(7,), (130, 33)])
def test_widths_depths_and_dense_input(hidden: tuple[int, ...], sparse: bool) -> None:
    compare(net(*hidden, sparse=sparse), LSHSoftmaxLoss(), Adam(lr=0.01), size=16, sparse=sparse)


def test_one_label_a_sample_and_no_bias() -> None:
    model = nn.Sequential(SparseLinear(FEATURES, 16, bias=False), nn.ReLU(), wide(16, bias=False))
    inputs, _ = batches(30)
    labels = torch.arange(30) * 7
    loss, rule = LSHSoftmaxLoss(), Adam(lr=0.01)
    other = copy.deepcopy(model)
    build_tables(model, other)
    seen = train(
        fast_step(model, loss, rule, (inputs, labels), 10), (inputs, labels), 10, rule, count=30
    )
    expected = train(autograd_step(other, loss, rule), (inputs, labels), 10, rule, count=30)
    np.testing.assert_allclose(seen, expected, rtol=1e-4)


DECAYING = {
    "sgd": ("batch", SGD(lr=0.1, weight_decay=0.05)),
    "adagrad": ("batch", Adagrad(lr=0.05, weight_decay=0.1)),
    "adam": ("batch", Adam(lr=0.01, weight_decay=0.5)),
    "adamw": ("batch", AdamW(lr=0.01, weight_decay=0.5)),
    "by samples": ("sample", SGD(lr=0.1, weight_decay=0.002)),
}


@pytest.mark.parametrize("name", DECAYING)
def test_decay_that_rows_missed_is_made_good_as_the_row_optimizer_does(name: str) -> None:
    share, rule = DECAYING[name]
    size = 10 if share == "batch" else 1
    model, loss = net(33, share=share), LSHSoftmaxLoss()
    other, first = copy.deepcopy(model), copy.deepcopy(model)
    inputs, labels = batches(60)
    build_tables(model, other)
    rates = rule.lr * np.linspace(1.0, 0.5, 60 // size)
    step = fast_step(model, loss, rule, (inputs, labels), size)
    step.train((inputs, labels), size, rates, 1)
    step.catch_up()
    optimizer = RowOptimizer(other.parameters(), rule)
    for number, rate in enumerate(rates):
        part = slice(number * size, (number + 1) * size)
        optimizer.zero_grad()
        loss(other(inputs[part]), labels[part]).backward()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    optimizer.catch_up()
    # By samples the hidden layer's gradient comes from rows that have caught up already.
    near = {"rtol": 1e-4, "atol": 5e-6 if share == "batch" else 2e-4}
    for key, parameter in other.named_parameters():
        torch.testing.assert_close(
            model.get_parameter(key), parameter, **near, msg=lambda m, n=key: n + m
        )
    # Rows that nobody touched have decayed at every step.
    left = math.prod(1 - rate * rule.weight_decay for rate in rates)
    assert left < 0.995
    same = torch.isclose(model[-1].weight, left * first[-1].weight, rtol=1e-5).all(1)
    assert same.sum() > 50


def test_it_learns_with_refreshes_beside() -> None:
    model = net(24, family=SimHash(hashes=4, tables=10), refresh=Refresh(first=3, growth=0.0))
    batch = batches(200)
    rule = Adam(lr=0.01)
    step = fast_step(model, LSHSoftmaxLoss(), rule, batch, 50)
    losses = [train(step, batch, 50, rule, count=200).mean() for _ in range(30)]
    assert losses[-1] < 0.3 * losses[0]


def test_trained_neurons_are_marked_and_steps_are_counted(monkeypatch: Any) -> None:
    model = net(24)
    layer = model[-1]
    counted: list[int] = []
    monkeypatch.setattr(layer, "count_steps", counted.append)
    batch = batches(50)
    rule = SGD(lr=0.1)
    step = fast_step(model, LSHSoftmaxLoss(), rule, batch, 20)
    before = layer.weight.detach().clone()
    train(step, batch, 20, rule, count=50)
    moved = (layer.weight != before).any(1)
    assert counted == [3]
    assert 60 < int(moved.sum()) <= layer.index.changed < NEURONS


def test_loaded_weights_get_tables_of_their_own() -> None:
    model = net(24)
    batch = batches(40)
    rule = SGD(lr=0.0)
    step = fast_step(model, LSHSoftmaxLoss(), rule, batch, 40)
    train(step, batch, 40, rule, count=40)
    before = model[-1].index
    model.load_state_dict({name: t * 2 for name, t in model.state_dict().items()})
    train(step, batch, 40, rule, count=40)
    assert model[-1].index is not before


def test_a_loss_that_is_not_finite_stops_before_the_update() -> None:
    model = net(24)
    rule = Adam(lr=0.01)
    inputs, labels = batches(30)
    inputs.values[inputs.offsets[25]] = math.nan
    step = fast_step(model, LSHSoftmaxLoss(), rule, (inputs, labels), 10)
    losses = train(step, (inputs, labels), 10, rule, count=30)
    assert len(losses) == 3
    assert math.isnan(losses[-1])
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_a_feature_that_the_layer_does_not_have_is_a_fault_of_the_data() -> None:
    model = net(24)
    inputs, labels = batches(10)
    wider = CSR(inputs.offsets, inputs.columns.clone(), inputs.values, FEATURES + 5)
    wider.columns[3] = FEATURES
    rule = SGD(lr=0.1)
    step = fast_step(model, LSHSoftmaxLoss(), rule, (wider, labels), 10)
    with pytest.raises(DataError, match=f"A feature is {FEATURES}; expected 0 to {FEATURES - 1}"):
        train(step, (wider, labels), 10, rule, count=10)


def test_collected_rows_are_autograds_gradients() -> None:
    model = net(24)
    other = copy.deepcopy(model)
    rule = SGD(lr=0.1)
    batch = batches(40)
    loss = LSHSoftmaxLoss()
    build_tables(model, other)
    taken: dict[str, list[Any]] = {}

    def take(kept: dict[str, list[Any]]) -> Any:
        return lambda name, rows, values: kept.setdefault(name, []).append((rows, values))

    path = describe(model, loss, rule, batch)
    trainer = FastTrainer(path, model, rule, {}, max_batch=20, threads=2, collect=True)
    train(SparseStep(trainer, take_rows=take(taken)), batch, 20, rule, count=40)
    expected: dict[str, list[Any]] = {}
    autograd = AutogradStep(
        other, LossStep(loss), rule, fresh_states(other, rule), take_rows=take(expected)
    )
    train(autograd, batch, 20, rule, count=40)
    assert set(taken) == {"0.weight", "2.weight", "2.bias"} == set(expected)
    for name, pushes in expected.items():
        assert len(taken[name]) == len(pushes) == 2
        for (rows, values), (right_rows, right_values) in zip(taken[name], pushes, strict=True):
            assert rows.tolist() == right_rows.tolist()
            torch.testing.assert_close(values, right_values, rtol=1e-3, atol=1e-5)
    for name, parameter in other.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), parameter, rtol=1e-3, atol=1e-4)


def _shared_weight() -> nn.Sequential:
    model = nn.Sequential(
        SparseLinear(FEATURES, 16),
        nn.ReLU(),
        nn.Linear(16, 16),
        nn.ReLU(),
        nn.Linear(16, 16),
        nn.ReLU(),
        wide(16),
    )
    model[4].weight = model[2].weight
    return model


def _frozen() -> nn.Sequential:
    model = net(16)
    model[0].weight.requires_grad_(False)
    return model


def _hooked() -> nn.Sequential:
    model = net(16)
    model[1].register_forward_hook(lambda *_: None)
    return model


class _OwnForward(nn.Sequential):
    def forward(self, x: Any) -> Any:
        return super().forward(x)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: nn.Sequential(SparseLinear(FEATURES, 8), nn.ReLU()), "last layer"),
        (lambda: nn.Sequential(wide(FEATURES)), "hidden layer"),
        (lambda: nn.Sequential(SparseLinear(FEATURES, 16), nn.Tanh(), wide(16)), "Tanh"),
        (lambda: nn.Sequential(nn.ReLU(), nn.ReLU(), wide(16)), "first layer is ReLU"),
        (_shared_weight, "share a weight"),
        (_frozen, "'0.weight' is frozen"),
        (_hooked, "hooks"),
        (lambda: _OwnForward(*net(16)), "_OwnForward is not"),
    ],
)
def test_other_models_are_left_to_autograd_with_a_reason(model: Any, reason: str) -> None:
    with pytest.raises(NoFastPath, match=reason):
        describe(model(), LSHSoftmaxLoss(), SGD(lr=0.1), batches(4))


@pytest.mark.parametrize(
    ("loss", "rule", "batch", "reason"),
    [
        (nn.CrossEntropyLoss(), SGD(lr=0.1), None, "loss is CrossEntropyLoss"),
        (LSHSoftmaxLoss(), SGD(lr=0.1, momentum=0.9), None, "momentum"),
        (LSHSoftmaxLoss(), Adam(lr=0.1, clip_norm=1.0), None, "clipped"),
        (LSHSoftmaxLoss(), SGD(lr=0.1), (torch.ones(2, FEATURES), torch.ones(2)), "given Tensor"),
        (LSHSoftmaxLoss(), SGD(lr=0.1), torch.ones(2), "not \\(inputs, targets\\)"),
    ],
)
def test_other_training_is_left_to_autograd_with_a_reason(
    loss: nn.Module, rule: Rule, batch: Any, reason: str
) -> None:
    with pytest.raises(NoFastPath, match=reason):
        describe(net(16), loss, rule, batches(4) if batch is None else batch)


def test_few_outputs_are_left_to_autograd() -> None:
    with pytest.warns(UserWarning, match="nn.Linear"):
        model = nn.Sequential(SparseLinear(FEATURES, 8), nn.ReLU(), LSHLinear(8, 10))
    assert is_wide(model)
    with pytest.raises(NoFastPath, match="all 10 outputs"):
        describe(model, LSHSoftmaxLoss(), SGD(lr=0.1), batches(4))
