"""The fused update rules against `torch.optim`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from manyhands import _native

Optimizer = Callable[[list[torch.Tensor]], torch.optim.Optimizer]

RULES: dict[str, tuple[dict[str, Any], Optimizer]] = {
    "sgd": ({"name": "sgd"}, lambda p: torch.optim.SGD(p, lr=0.1)),
    "sgd-decay": (
        {"name": "sgd", "weight_decay": 0.1},
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
    ),
    "momentum": (
        {"name": "sgd", "momentum": 0.9, "weight_decay": 0.01},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    ),
    "nesterov": (
        {"name": "sgd", "momentum": 0.8, "nesterov": True, "weight_decay": 0.01},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.01),
    ),
    "adagrad": (
        {"name": "adagrad", "eps": 1e-10, "weight_decay": 0.01},
        lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=0.01),
    ),
    "adam": (
        {"name": "adam", "weight_decay": 0.01},
        lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.01),
    ),
    "adamw": (
        {"name": "adamw", "beta1": 0.8, "beta2": 0.99, "weight_decay": 0.1},
        lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.99), weight_decay=0.1),
    ),
    "accumulate": (
        {"name": "accumulate", "weight_decay": 0.1},
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
    ),
    "outer without delay": (
        {"name": "outer", "momentum": 0.9},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    ),
}
SIZES = (1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 100, 1027)


def unaligned(size: int, offset: int) -> torch.Tensor:
    """A vector that starts `offset` floats after an aligned address."""
    return torch.randn(size + offset)[offset:]


@pytest.mark.parametrize("name", RULES)
def test_rule_equals_torch(name: str, simd: str) -> None:
    torch.manual_seed(0)
    settings, optimizer_of = RULES[name]
    rule = _native.Rule(**settings)
    weights = [unaligned(size, offset % 5) for offset, size in enumerate(SIZES)]
    states = [[torch.zeros_like(w) for _ in range(rule.states)] for w in weights]
    peers = [w.clone() for w in weights]
    optimizer = optimizer_of(peers)
    for step in range(1, 6):
        grads = [unaligned(w.numel(), step % 3) for w in weights]
        for peer, grad in zip(peers, grads, strict=True):
            peer.grad = grad * 0.5
        optimizer.step()
        _native.update(rule, 0.1, step, 0.5, weights, grads, states)
    for weight, peer in zip(weights, peers, strict=True):
        torch.testing.assert_close(weight, peer, rtol=2e-5, atol=2e-6)


def test_accumulate_keeps_the_sum_of_what_it_applied(simd: str) -> None:
    rule = _native.Rule("accumulate")
    weight, accrued = torch.zeros(101), torch.zeros(101)
    grads = [torch.randn(101) for _ in range(4)]
    for step, grad in enumerate(grads, start=1):
        _native.update(rule, 0.25, step, 0.5, [weight], [grad], [[accrued]])
    torch.testing.assert_close(accrued, 0.5 * torch.stack(grads).sum(0))
    torch.testing.assert_close(weight, -0.25 * accrued)


@pytest.mark.parametrize("delay", [1, 2, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_outer_moves_its_momentum_once_in_a_delay(delay: int, momentum: float, simd: str) -> None:
    rule = _native.Rule("outer", momentum=momentum, delay=delay)
    weight, states = torch.randn(37), [torch.zeros(37), torch.zeros(37)]
    expected, speed, waiting = weight.double(), torch.zeros(37), torch.zeros(37)
    for step in range(1, 9):
        moved = torch.randn(37)
        waiting = waiting + moved
        change = moved / delay
        if step % delay == 0:
            speed = momentum * speed + waiting / delay
            waiting = torch.zeros(37)
            change = change + momentum * speed
        expected = expected - 0.7 * change
        _native.update(rule, 0.7, step, 1.0, [weight], [moved], [states])
    torch.testing.assert_close(weight, expected.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(states[0], speed, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(states[1], waiting, rtol=1e-5, atol=1e-5)


def test_settings_that_a_rule_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match="delay is 0; expected 1 or more"):
        _native.Rule("outer", delay=0)
    with pytest.raises(ValueError, match="Only the outer rule has a delay"):
        _native.Rule("sgd", delay=2)
    with pytest.raises(ValueError, match="no weight decay"):
        _native.Rule("outer", weight_decay=0.1)
    with pytest.raises(ValueError, match="no momentum"):
        _native.Rule("accumulate", momentum=0.9)


def test_update_touches_nothing_beyond_the_array(simd: str) -> None:
    for size in SIZES:
        around = torch.full((size + 40,), 7.0)
        weight = around[20 : 20 + size]
        _native.update(_native.Rule("sgd"), 1.0, 1, 1.0, [weight], [torch.ones(size)], [[]])
        assert (around[20 : 20 + size] == 6.0).all()
        assert (around[:20] == 7.0).all()
        assert (around[20 + size :] == 7.0).all()


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
def test_update_rows_equals_update_of_those_rows(name: str, simd: str) -> None:
    rule = _native.Rule(name)
    weight, grads = torch.randn(9, 13), torch.randn(3, 13)
    states = [torch.rand(9, 13) for _ in range(rule.states)]
    rows = torch.tensor([7, 0, 4])
    expected, expected_states = weight.clone(), [s.clone() for s in states]
    for row, grad in zip(rows.tolist(), grads, strict=True):
        row_states = [s[row] for s in expected_states]
        _native.update(rule, 0.1, 3, 2.0, [expected[row]], [grad], [row_states])
    _native.update_rows(rule, 0.1, 3, 2.0, weight, rows, grads, states)
    assert torch.equal(weight, expected)
    for state, peer in zip(states, expected_states, strict=True):
        assert torch.equal(state, peer)


def test_update_rows_keeps_a_share_of_each_row_first(simd: str) -> None:
    weight = torch.ones(4, 5)
    rows, keep = torch.tensor([3, 1]), torch.tensor([0.5, 0.25])
    _native.update_rows(
        _native.Rule("sgd"), 1.0, 1, 1.0, weight, rows, torch.full((2, 5), 0.1), [], keep
    )
    expected = torch.tensor([1.0, 0.15, 1.0, 0.4]).unsqueeze(1).expand(4, 5)
    torch.testing.assert_close(weight, expected)
    with pytest.raises(ValueError, match="1 shares to keep for 2 rows"):
        _native.update_rows(
            _native.Rule("sgd"), 1.0, 1, 1.0, weight, rows, torch.ones(2, 5), [], keep[:1]
        )


def test_squared_norm_sums_in_double(simd: str) -> None:
    arrays = [torch.full((1_000_003,), 0.1), unaligned(37, 3), torch.randn(4, 5)]
    exact = sum(float(a.double().square().sum()) for a in arrays)
    assert _native.squared_norm(arrays) == pytest.approx(exact, rel=1e-6)
    assert _native.squared_norm([]) == 0.0


def test_average_moves_towards_the_weights(simd: str) -> None:
    for size in SIZES:
        averaged, weight = unaligned(size, 1), torch.randn(size)
        expected = averaged + 0.25 * (weight - averaged)
        _native.average([averaged], [weight], 0.75)
        torch.testing.assert_close(averaged, expected)


def test_wrong_arguments_are_refused_before_anything_changes() -> None:
    rule, weight = _native.Rule("adagrad"), torch.zeros(4)
    good = torch.zeros(4)
    with pytest.raises(ValueError, match=r"shape \(3\).*\(4\)"):
        _native.update(rule, 0.1, 1, 1.0, [good, weight], [good + 1, torch.ones(3)], [[good]] * 2)
    with pytest.raises(ValueError, match="0 state arrays; expected 1"):
        _native.update(rule, 0.1, 1, 1.0, [weight], [torch.ones(4)], [[]])
    with pytest.raises(ValueError, match="row number is 4"):
        _native.update_rows(
            rule, 0.1, 1, 1.0, torch.zeros(4, 2), torch.tensor([0, 4]), torch.ones(2, 2),
            [torch.zeros(4, 2)],
        )  # fmt: skip
    with pytest.raises(TypeError):
        _native.update(rule, 0.1, 1, 1.0, [weight], [torch.ones(4).double()], [[good]])
    with pytest.raises(TypeError):
        _native.average([torch.zeros(4, 4).t()], [torch.zeros(4, 4)], 0.5)
    with pytest.raises(ValueError, match="'rmsprop'"):
        _native.Rule("rmsprop")
    assert (weight == 0).all()
    assert (good == 0).all()
