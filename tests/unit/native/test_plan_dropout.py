"""Dropout in a plan: how much it drops, that the gradient follows, and that seeds repeat."""

from __future__ import annotations

import pytest
import torch
from native_peers import Peers
from torch import nn


def peers_of(model: nn.Sequential, shape: tuple[int, ...], seed: int = 0) -> Peers:
    return Peers(
        model,
        shape,
        rule={"name": "sgd"},
        optimizer=lambda p: torch.optim.SGD(p, lr=1.0),
        seed=seed,
    )


@pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_the_share_dropped_and_the_scale_of_the_rest(p: float, simd: str) -> None:
    """With all-zero weights the gradient is (1/2, -1/2) times what dropout let through."""
    features = 20_000
    model = nn.Sequential(nn.Dropout(p), nn.Linear(features, 2, bias=False))
    nn.init.zeros_(model[1].weight)
    peers = peers_of(model, (features,))
    peers.train_plan(torch.ones(1, features), torch.tensor([0]), 1, 1.0)
    seen = peers.copy[1].weight.detach()[0] * 2
    share = float((seen == 0).float().mean())
    assert share == pytest.approx(p, abs=0.02)
    if p < 1:
        torch.testing.assert_close(seen[seen != 0].unique(), torch.tensor([1 / (1 - p)]))


def test_the_gradient_passes_where_the_value_did(simd: str) -> None:
    model = nn.Sequential(nn.Linear(1, 5000), nn.Dropout(0.5), nn.Linear(5000, 2))
    peers = peers_of(model, (1,))
    first, last = (peers.copy[i].weight.detach().clone() for i in (0, 2))
    peers.train_plan(torch.ones(1, 1), torch.tensor([1]), 1, 1.0)
    first_moved = (peers.copy[0].weight.detach() != first).squeeze(1)
    last_moved = (peers.copy[2].weight.detach() != last).any(0)
    assert torch.equal(first_moved, last_moved)
    assert 0.4 < float(first_moved.float().mean()) < 0.6


def test_seeds_repeat_and_differ(simd: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 30), nn.Dropout(0.3), nn.Linear(30, 3))
    x, y = torch.randn(20, 6), torch.randint(3, (20,))
    first, same, other = (peers_of(model, (6,), seed) for seed in (3, 3, 4))
    losses = first.train_plan(x, y, 5, 0.1)
    assert same.train_plan(x, y, 5, 0.1) == losses
    assert other.train_plan(x, y, 5, 0.1) != losses


def test_evaluation_drops_nothing(simd: str) -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Dropout(0.5), nn.Flatten(), nn.Dropout(0.5), nn.Linear(48, 3)
    )
    peers = peers_of(model, (1, 6, 6))
    x = torch.randn(70, 1, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(peers.outputs(x), model.eval()(x), rtol=1e-4, atol=1e-5)
