"""The native plan gives factors in place of weight gradients: the same product; weights stay."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from manyhands import kernels
from manyhands.optim.rules import Accumulate
from manyhands.replica import plan as native_plan
from manyhands.replica.factors import FactorCapture
from manyhands.replica.steps import AutogradStep, LossStep, PlanStep

LOSS = nn.CrossEntropyLoss()
FACTORED = ["6.weight", "2.weight"]  # not in the plan's order
SIZE, COUNT = 8, 21  # the last batch is smaller


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(19, 33), nn.ReLU(), nn.Linear(33, 40), nn.ReLU(),
        nn.Linear(40, 37, bias=False), nn.Tanh(), nn.Linear(37, 6),
    )  # fmt: skip


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(COUNT, 19), torch.randint(6, (COUNT,))


def factored_step(model: nn.Module) -> tuple[PlanStep, FactorCapture, dict[str, torch.Tensor]]:
    rule, batch = Accumulate(lr=0.1), samples()
    described = native_plan.describe(model, LossStep(LOSS), batch)
    sums = {name: torch.zeros_like(p.data) for name, p in model.named_parameters()}
    states = {name: [line] for name, line in sums.items()}
    capture = FactorCapture(model, FACTORED)
    plan = native_plan.build(
        described, model, rule, states, max_batch=SIZE, seed=0, factors=FACTORED
    )
    order = native_plan.factored(described, model, FACTORED)
    shapes = {name: p.shape for name, p in model.named_parameters()}
    autograd = AutogradStep(model, LossStep(LOSS), rule, states)
    step = PlanStep(
        plan,
        autograd,
        factored={name: shapes[name] for name in order},
        take_factors=capture.put,
    )
    return step, capture, sums


def gradients_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Of all batches, added up."""
    inputs, targets = samples()
    for first in range(0, COUNT, SIZE):
        part = slice(first, first + SIZE)
        LOSS(model(inputs[part]), targets[part]).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def test_factors_multiply_to_the_gradient_and_the_weight_stays() -> None:
    model = net()
    expected = gradients_of(copy.deepcopy(model))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    step, capture, sums = factored_step(model)
    losses = step.train(samples(), SIZE, np.zeros(3), 1)
    assert len(losses) == 3
    taken = capture.take()
    assert sorted(taken) == sorted(FACTORED)
    for name, gradient in expected.items():
        if name in FACTORED:
            (pair,) = taken[name]
            torch.testing.assert_close(pair.d.T @ pair.a, gradient, rtol=1e-4, atol=1e-5)
            assert not sums[name].any()
        else:
            torch.testing.assert_close(sums[name], gradient, rtol=1e-4, atol=1e-5)
        assert torch.equal(dict(model.named_parameters())[name], before[name])


def test_everything_else_moves_at_once() -> None:
    model = net()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    step, _, _ = factored_step(model)
    step.train(tuple(tensor[:SIZE] for tensor in samples()), SIZE, np.full(1, 0.1), 1)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) is (name in FACTORED), name


def test_samples_that_the_plan_leaves_to_autograd_give_factors_too() -> None:
    inputs, targets = samples()
    targets[3] = -100  # left out by the loss
    step, capture, _ = factored_step(net())
    step.train((inputs[:SIZE], targets[:SIZE]), SIZE, np.zeros(1), 1)
    assert sorted(capture.take()) == sorted(FACTORED)


def test_a_plan_refuses_to_give_factors_without_room_or_clipped() -> None:
    model = net()
    described = native_plan.describe(model, LossStep(LOSS), samples())
    with pytest.raises(ValueError, match="clip_norm"):
        native_plan.build(
            described,
            model,
            Accumulate(lr=0.1, clip_norm=1.0),
            {},
            max_batch=SIZE,
            seed=0,
            factors=FACTORED,
        )
    plan = native_plan.build(
        described, model, Accumulate(lr=0.1), {}, max_batch=SIZE, seed=0, factors=["2.weight"]
    )
    for factors, sentence in [
        ([], "expected 1"),
        ([(np.zeros((SIZE, 33), np.float32), np.zeros((SIZE, 39), np.float32))], r"\(8, 40\)"),
        ([(np.zeros((3, 33), np.float32), np.zeros((3, 40), np.float32))], r"\(8, 33\)"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            train(plan, factors)


def test_factors_are_written_to_the_arrays_that_are_given_or_refused() -> None:
    model = net()
    described = native_plan.describe(model, LossStep(LOSS), samples())
    plan = native_plan.build(
        described, model, Accumulate(lr=0.1), {}, max_batch=SIZE, seed=0, factors=["2.weight"]
    )
    strided = np.zeros((33, SIZE), np.float32).T  # a copy of it would be filled in vain
    with pytest.raises(TypeError):
        train(plan, [(strided, np.zeros((SIZE, 40), np.float32))])


def train(plan: kernels.Plan, factors: list[tuple[np.ndarray, np.ndarray]]) -> None:
    inputs, targets = samples()
    plan.train(inputs[:SIZE], targets[:SIZE], SIZE, np.zeros(1), 1, np.zeros(1), factors)
