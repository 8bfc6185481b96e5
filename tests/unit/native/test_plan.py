"""The compiled training step against PyTorch's autograd and optimizers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from native_peers import Optimizer, Peers
from torch import nn

LR = 0.05
MOMENTUM: tuple[dict[str, Any], Optimizer] = (
    {"name": "sgd", "momentum": 0.9, "weight_decay": 1e-3},
    lambda p: torch.optim.SGD(p, lr=LR, momentum=0.9, weight_decay=1e-3),
)
RULES: dict[str, tuple[dict[str, Any], Optimizer]] = {
    "sgd": ({"name": "sgd"}, lambda p: torch.optim.SGD(p, lr=LR)),
    "momentum": MOMENTUM,
    "nesterov": (
        {"name": "sgd", "momentum": 0.9, "nesterov": True},
        lambda p: torch.optim.SGD(p, lr=LR, momentum=0.9, nesterov=True),
    ),
    "adagrad": (
        {"name": "adagrad", "eps": 1e-5},
        lambda p: torch.optim.Adagrad(p, lr=LR, eps=1e-5),
    ),
    "adam": ({"name": "adam", "eps": 1e-4}, lambda p: torch.optim.Adam(p, lr=LR, eps=1e-4)),
    "adamw": (
        {"name": "adamw", "eps": 1e-4, "weight_decay": 0.1},
        lambda p: torch.optim.AdamW(p, lr=LR, eps=1e-4, weight_decay=0.1),
    ),
    "accumulate": ({"name": "accumulate"}, lambda p: torch.optim.SGD(p, lr=LR)),
}


def adams_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 10, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(10, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 37), nn.ReLU(), nn.Linear(37, 10),
    )  # fmt: skip


def small_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(3 * 5 * 4, 13), nn.Tanh(), nn.Linear(13, 5),
    )  # fmt: skip


SMALL_SHAPE = (2, 10, 9)


def headed(shape: tuple[int, ...], classes: int, *layers: nn.Module) -> nn.Sequential:
    """The layers, then a linear layer from whatever they give to the classes."""
    body = nn.Sequential(*layers, nn.Flatten())
    features = int(body(torch.zeros(1, *shape)).shape[1])
    return body.append(nn.Linear(features, classes))


NETS: dict[str, tuple[nn.Sequential, tuple[int, ...]]] = {
    "one linear": (nn.Sequential(nn.Linear(7, 3)), (7,)),
    "one input, one output": (nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 2)), (1,)),
    "no bias": (
        nn.Sequential(nn.Linear(33, 17, bias=False), nn.Sigmoid(), nn.Linear(17, 4, bias=False)),
        (33,),
    ),
    "wide": (nn.Sequential(nn.Linear(512, 130), nn.ReLU(), nn.Linear(130, 101)), (512,)),
    "activations": (
        nn.Sequential(
            nn.ReLU(), nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 40), nn.Sigmoid(),
            nn.Linear(40, 24), nn.ReLU(), nn.ReLU(), nn.Linear(24, 6),
        ),
        (20,),
    ),
    "adam": (adams_net(), (1, 28, 28)),
    "padding": (
        headed((3, 10, 8), 4, nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(),
               nn.Conv2d(8, 7, 3, padding=(2, 1)), nn.Tanh()),
        (3, 10, 8),
    ),
    "stride": (
        headed((2, 15, 16), 4, nn.Conv2d(2, 5, 3, stride=2), nn.ReLU(),
               nn.Conv2d(5, 6, (3, 2), stride=(2, 1), padding=1)),
        (2, 15, 16),
    ),
    "dilation": (
        headed((1, 14, 17), 3, nn.Conv2d(1, 4, 3, dilation=2), nn.ReLU(),
               nn.Conv2d(4, 3, 3, dilation=(1, 3), stride=(1, 2))),
        (1, 14, 17),
    ),
    "1x1 convolution": (
        headed((3, 5, 6), 3, nn.Conv2d(3, 1, 1), nn.ReLU(), nn.Conv2d(1, 9, 1, bias=False)),
        (3, 5, 6),
    ),
    "many channels": (
        headed((16, 15, 15), 10, nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
               nn.Conv2d(32, 33, 3), nn.ReLU(), nn.AvgPool2d(5)),
        (16, 15, 15),
    ),
    "behind pools": (
        headed((9, 16, 13), 6, nn.Conv2d(9, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
               nn.Conv2d(12, 10, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        (9, 16, 13),
    ),
    "pools": (
        headed((2, 21, 22), 4, nn.MaxPool2d(3, stride=2, padding=1), nn.Conv2d(2, 6, 3), nn.ReLU(),
               nn.MaxPool2d(3, stride=1), nn.ReLU(), nn.AvgPool2d((2, 3), stride=2, padding=1)),
        (2, 21, 22),
    ),
    "pool over odd sizes": (
        headed((1, 18, 16), 4, nn.Conv2d(1, 3, 4), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(3, 3, 1),
               nn.Sigmoid(), nn.MaxPool2d(2)),
        (1, 18, 16),
    ),
    "no linear layer": (
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AvgPool2d(6), nn.Flatten()), (2, 8, 8),
    ),
}  # fmt: skip


def data(shape: tuple[int, ...], classes: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, *shape), torch.randint(classes, (count,))


def classes_of(model: nn.Sequential, shape: tuple[int, ...]) -> int:
    return int(model(torch.zeros(1, *shape)).shape[1])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(1)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 8, 17, 65])
@pytest.mark.parametrize("name", NETS)
def test_training_equals_torch(name: str, batch_size: int, simd: str) -> None:
    model, shape = copy.deepcopy(NETS[name][0]), NETS[name][1]
    rule, optimizer = MOMENTUM
    peers = Peers(model, shape, rule=rule, optimizer=optimizer)
    x, y = data(shape, classes_of(model, shape), 3 * batch_size + batch_size // 2)
    expected = peers.train_torch(x, y, batch_size)
    assert peers.train_plan(x, y, batch_size, LR) == pytest.approx(expected, rel=1e-3, abs=1e-5)
    peers.assert_close()
    with torch.no_grad():
        torch.testing.assert_close(peers.outputs(x), peers.copy(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("clip_norm", [None, 0.1, 1e6])
@pytest.mark.parametrize("name", RULES)
def test_every_rule_with_and_without_clipping(
    name: str, clip_norm: float | None, simd: str
) -> None:
    rule, optimizer = RULES[name]
    peers = Peers(small_net(), SMALL_SHAPE, rule=rule, optimizer=optimizer, clip_norm=clip_norm)
    x, y = data(SMALL_SHAPE, 5, 40)
    expected = peers.train_torch(x, y, 7)
    assert peers.train_plan(x, y, 7, LR) == pytest.approx(expected, rel=1e-3)
    peers.assert_close(rtol=5e-3, atol=1e-4)


def test_accumulate_leaves_the_sum_of_gradients_in_the_states(simd: str) -> None:
    peers = Peers(
        small_net(), SMALL_SHAPE, rule={"name": "accumulate"}, optimizer=RULES["accumulate"][1]
    )
    before = [p.detach().clone() for p in peers.copy.parameters()]
    x, y = data(SMALL_SHAPE, 5, 40)
    peers.train_plan(x, y, 7, LR)
    for parameter, start, accrued in zip(
        peers.copy.parameters(), before, peers.states, strict=True
    ):
        torch.testing.assert_close(LR * accrued, start - parameter, rtol=1e-4, atol=1e-6)


def test_label_smoothing(simd: str) -> None:
    rule, optimizer = MOMENTUM
    peers = Peers(small_net(), SMALL_SHAPE, rule=rule, optimizer=optimizer, label_smoothing=0.2)
    x, y = data(SMALL_SHAPE, 5, 30)
    expected = peers.train_torch(x, y, 10)
    assert peers.train_plan(x, y, 10, LR) == pytest.approx(expected, rel=1e-4)
    peers.assert_close()


@pytest.mark.parametrize("frozen", [(0,), (3,), (0, 1), (0, 1, 2, 3), (2,), (4, 5)])
def test_frozen_parameters_stay(frozen: tuple[int, ...], simd: str) -> None:
    model = small_net()
    parameters = list(model.parameters())
    for i in frozen:
        parameters[i].requires_grad_(False)
    rule, optimizer = MOMENTUM
    peers = Peers(model, SMALL_SHAPE, rule=rule, optimizer=optimizer)
    before = [p.detach().clone() for p in peers.copy.parameters()]
    x, y = data(SMALL_SHAPE, 5, 12)
    peers.train_torch(x, y, 4)
    peers.train_plan(x, y, 4, LR)
    peers.assert_close()
    for i, (parameter, start) in enumerate(zip(peers.copy.parameters(), before, strict=True)):
        assert torch.equal(parameter, start) == (i in frozen)


def test_nothing_trained_is_a_plain_loss(simd: str) -> None:
    model = small_net().requires_grad_(False)
    peers = Peers(model, SMALL_SHAPE, rule={"name": "sgd"}, optimizer=RULES["sgd"][1])
    x, y = data(SMALL_SHAPE, 5, 12)
    assert peers.train_plan(x, y, 5, LR) == pytest.approx(peers.train_torch(x, y, 5), rel=1e-5)
    peers.assert_close(rtol=0, atol=0)


def test_steps_continue_where_the_last_call_ended(simd: str) -> None:
    rule, optimizer = RULES["adam"]
    peers = Peers(small_net(), SMALL_SHAPE, rule=rule, optimizer=optimizer)
    x, y = data(SMALL_SHAPE, 5, 40)
    peers.train_torch(x, y, 10)
    peers.train_plan(x[:20], y[:20], 10, LR)
    peers.train_plan(x[20:], y[20:], 10, LR, first_step=3)
    peers.assert_close(rtol=5e-3, atol=1e-4)


def test_extreme_logits_stay_finite(simd: str) -> None:
    model = nn.Sequential(nn.Linear(2, 3))
    with torch.no_grad():
        model[0].weight.mul_(1e4)
    peers = Peers(model, (2,), rule={"name": "sgd"}, optimizer=RULES["sgd"][1])
    x, y = data((2,), 3, 9)
    assert peers.train_plan(x, y, 3, LR) == pytest.approx(peers.train_torch(x, y, 3), rel=1e-4)
    peers.assert_close()
