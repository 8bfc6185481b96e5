"""Factors multiply to the gradient they stand for; weights they can't stand for are left out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from manyhands.errors import ModelError
from manyhands.replica.factors import FactorCapture, joined, samples_of_factors
from manyhands.replica.steps import LossStep


def batch(features: int = 6, classes: int = 4, count: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, features), torch.randint(0, classes, (count,))


STEP = LossStep(F.cross_entropy)


def test_factors_multiply_to_the_weight_gradient() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    data = batch()
    STEP(model, data).backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    capture = FactorCapture(model, ["0.weight", "2.weight"])
    STEP(model, data).backward()
    taken = capture.take()
    for name in ("0.weight", "2.weight"):
        pair = joined(taken[name])
        torch.testing.assert_close(pair.d.T @ pair.a, wanted[name])
        assert model.get_parameter(name).grad is None
    torch.testing.assert_close(model.get_parameter("0.bias").grad, wanted["0.bias"])
    assert capture.take() == {}


def test_rows_of_sequences_are_counted() -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 8)
            self.outer = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.outer(self.inner(x).relu().mean(1))

    x, y = torch.randn(5, 3, 6), torch.randint(0, 4, (5,))
    assert samples_of_factors(Steps(), STEP, (x, y)) == {"inner.weight": 15, "outer.weight": 5}


def test_a_layer_used_twice_gives_both_uses() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.last = nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.layer(self.layer(x).tanh()))

    assert samples_of_factors(Twice(), STEP, batch())["layer.weight"] == 10


def test_a_weight_that_is_also_used_elsewhere_is_left_out() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(4, 8)
            self.body = nn.Linear(6, 8)
            self.head = nn.Linear(8, 4, bias=False)
            self.head.weight = self.embedding.weight
            self.direct = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.body(x)
            return self.head(self.direct(h) + F.linear(h, self.direct.weight))

    assert samples_of_factors(Tied(), STEP, batch()) == {"body.weight": 5}


def test_a_first_layer_without_bias_has_no_errors_to_take() -> None:
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 4))
    assert samples_of_factors(model, STEP, batch()) == {"2.weight": 5}


def test_an_input_changed_in_place_is_refused() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6)
            self.last = nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.first(x) * 1.0
            y = self.last(h)
            h.detach().zero_()
            return y

    model = InPlace()
    capture = FactorCapture(model, ["last.weight"])
    with pytest.raises(ModelError, match="changed in place"):
        STEP(model, batch()).backward()
    assert capture.take() == {}


def test_a_gradient_that_is_not_finite_can_not_be_compared_and_has_no_factors() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nan
    assert samples_of_factors(model, STEP, batch()) == {}
