"""Convolutions that the plan computes by tiles of 4 x 4 outputs, against float64."""

from __future__ import annotations

import copy

import pytest
import torch
from native_peers import Peers
from torch import nn

IN, OUT = 33, 44  # enough for tiles to pay, and no multiple of any vector
# Sizes of images and padding: whole tiles, and rows and columns that hang over the border.
GEOMETRIES = [
    ((8, 8), (1, 1)), ((5, 9), (1, 1)), ((15, 6), (1, 1)), ((10, 11), (0, 0)),
    ((11, 10), (2, 2)), ((13, 14), (2, 0)), ((17, 12), (0, 1)),
]  # fmt: skip


def peers_of(layers: nn.Sequential, shape: tuple[int, ...]) -> Peers:
    return Peers(
        layers,
        shape,
        rule={"name": "accumulate"},
        optimizer=lambda p: torch.optim.SGD(p, lr=1.0),
        max_batch=12,
    )


def conv_net(
    size: tuple[int, int], padding: tuple[int, int], *, bias: bool, relu: bool
) -> nn.Sequential:
    """A layer before the one in question, which then needs an input gradient, and a loss behind."""
    conv = nn.Conv2d(IN, OUT, 3, padding=padding, bias=bias)
    body = nn.Sequential(nn.Conv2d(2, IN, 1), nn.Tanh(), conv)
    if relu:
        body.append(nn.ReLU())
    body.append(nn.Flatten())
    return body.append(nn.Linear(int(body(torch.zeros(1, 2, *size)).shape[1]), 5))


def gradients(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    exact = copy.deepcopy(model).double()
    nn.CrossEntropyLoss()(exact(x.double()), y).backward()
    return [p.grad.float() for p in exact.parameters() if p.grad is not None]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(1)


@pytest.mark.parametrize(("bias", "relu"), [(True, True), (False, False)])
@pytest.mark.parametrize(("size", "padding"), GEOMETRIES)
def test_outputs_and_gradients_are_exact_to_rounding(
    size: tuple[int, int], padding: tuple[int, int], bias: bool, relu: bool, simd: str
) -> None:
    peers = peers_of(conv_net(size, padding, bias=bias, relu=relu), (2, *size))
    x, y = torch.randn(12, 2, *size), torch.randint(5, (12,))
    for batch in (12, 1, 9):
        expected = gradients(peers.copy, x[:batch], y[:batch])
        before = [state.clone() for state in peers.states]
        peers.train_plan(x[:batch], y[:batch], batch, lr=0.0)
        for after, start, exact in zip(peers.states, before, expected, strict=True):
            error = (after - start - exact).abs().max()
            assert error <= 2e-5 * exact.abs().max()
    with torch.no_grad():
        exact = copy.deepcopy(peers.copy).double()(x.double()).float()
    torch.testing.assert_close(peers.outputs(x), exact, rtol=1e-5, atol=1e-5)


def test_an_image_gives_the_same_whatever_is_beside_it(simd: str) -> None:
    layers = nn.Sequential(nn.Conv2d(IN, OUT, 3, padding=1), nn.ReLU(), nn.Conv2d(OUT, IN, 3))
    peers = peers_of(layers.append(nn.AvgPool2d(10)).append(nn.Flatten()), (IN, 12, 12))
    x = torch.randn(12, IN, 12, 12)
    together = peers.outputs(x)
    for i in range(12):
        assert torch.equal(peers.outputs(x[i : i + 1])[0], together[i])


def test_frozen_weights_get_no_gradient_and_pass_theirs_on(simd: str) -> None:
    model = conv_net((8, 8), (1, 1), bias=True, relu=True)
    model[2].requires_grad_(False)
    peers = peers_of(model, (2, 8, 8))
    x, y = torch.randn(12, 2, 8, 8), torch.randint(5, (12,))
    expected = gradients(peers.copy, x, y)
    peers.train_plan(x, y, 12, lr=0.0)
    trained = [
        s for s, p in zip(peers.states, peers.copy.parameters(), strict=True) if p.requires_grad
    ]
    for seen, exact in zip(trained, expected, strict=True):
        assert (seen - exact).abs().max() <= 2e-5 * exact.abs().max()
    for frozen in peers.states[2:4]:
        assert not frozen.any()
