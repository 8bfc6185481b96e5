"""What a plan refuses, and that a refusal or a broken loss leaves the weights as they were."""

from __future__ import annotations

import gc
import math
import threading
from typing import Any

import pytest
import torch
from native_peers import Peers
from torch import nn

from manyhands import _native


def peers_of(model: nn.Sequential, shape: tuple[int, ...], **settings: Any) -> Peers:
    return Peers(
        model,
        shape,
        rule={"name": "sgd"},
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        **settings,
    )


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 4)
    )


def train(plan: _native.Plan, x: torch.Tensor, y: torch.Tensor, batch: int, room: int) -> int:
    rates = torch.full((room,), 0.1, dtype=torch.float64)
    return plan.train(x, y, batch, rates, 1, torch.zeros(room, dtype=torch.float64))


def test_a_loss_that_is_not_finite_stops_before_the_update(simd: str) -> None:
    peers = peers_of(net(), (1, 8, 8))
    x, y = torch.randn(12, 1, 8, 8), torch.randint(4, (12,))
    x[9:] = math.nan
    losses = peers.train_plan(x, y, 3, 0.1)
    assert len(losses) == 4
    assert math.isnan(losses[3])
    peers.train_torch(x[:9], y[:9], 3)
    peers.assert_close()
    again = peers.train_plan(x[:9], y[:9], 3, 0.1)
    assert again == pytest.approx(peers.train_torch(x[:9], y[:9], 3), rel=1e-3)


def test_an_infinite_logit_stops_too(simd: str) -> None:
    peers = peers_of(nn.Sequential(nn.Linear(2, 3)), (2,))
    x, y = torch.full((2, 2), math.inf), torch.zeros(2, dtype=torch.int64)
    assert not math.isfinite(peers.train_plan(x, y, 2, 0.1)[0])
    peers.assert_close(rtol=0, atol=0)


@pytest.mark.parametrize(
    ("x_shape", "targets", "batch", "room", "message"),
    [
        ((4, 1, 8, 7), [0] * 4, 2, 2, r"shape \(4, 1, 8, 7\); expected \(N, 1, 8, 8\)"),
        ((4, 64), [0] * 4, 2, 2, r"expected \(N, 1, 8, 8\)"),
        ((4, 1, 8, 8), [0] * 3, 2, 2, "3 targets; expected one for each of the 4"),
        ((4, 1, 8, 8), [0, 1, 2, 4], 2, 2, "Target 3 is 4; expected 0 to 3"),
        ((4, 1, 8, 8), [0, -1, 2, 3], 2, 2, "Target 1 is -1"),
        ((4, 1, 8, 8), [0] * 4, 0, 2, "batch size is 0"),
        ((80, 1, 8, 8), [0] * 80, 70, 2, "batch size is 70; expected 1 to the plan's 65"),
        ((4, 1, 8, 8), [0] * 4, 3, 1, "expected 2, one for each batch"),
    ],
)
def test_bad_batches_change_nothing(
    x_shape: tuple[int, ...], targets: list[int], batch: int, room: int, message: str
) -> None:
    peers = peers_of(net(), (1, 8, 8))
    with pytest.raises(ValueError, match=message):
        train(peers.plan, torch.randn(x_shape), torch.tensor(targets), batch, room)
    peers.assert_close(rtol=0, atol=0)


def test_wrong_kinds_of_array_are_type_errors() -> None:
    peers = peers_of(net(), (1, 8, 8))
    x, y = torch.randn(2, 1, 8, 8), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(TypeError):
        train(peers.plan, x.double(), y, 2, 1)
    with pytest.raises(TypeError):
        train(peers.plan, x, y.int(), 2, 1)
    with pytest.raises(TypeError):
        train(peers.plan, x.transpose(2, 3), y, 2, 1)
    with pytest.raises(TypeError):
        peers.plan.forward(x, torch.zeros(4, 2).t())


def test_layers_that_do_not_fit_are_refused() -> None:
    plan = _native.Plan((2, 6, 6), 4)
    pairs = ((1, 1), (0, 0), (1, 1))
    with pytest.raises(ValueError, match=r"takes 3 channels; expected 2"):
        plan.conv2d(torch.zeros(4, 3, 3, 3), None, *pairs, [], [])
    with pytest.raises(ValueError, match=r"reaches over 7 pixels; expected at most .* 6"):
        plan.conv2d(torch.zeros(4, 2, 7, 7), None, *pairs, [], [])
    with pytest.raises(ValueError, match=r"bias has shape \(3\); expected \(4\)"):
        plan.conv2d(torch.zeros(4, 2, 3, 3), torch.zeros(3), *pairs, [], [])
    with pytest.raises(ValueError, match=r"stride is \(0, 1\)"):
        plan.conv2d(torch.zeros(4, 2, 3, 3), None, (0, 1), (0, 0), (1, 1), [], [])
    with pytest.raises(ValueError, match="pooling window of 7"):
        plan.max_pool2d((7, 7), (1, 1), (0, 0))
    with pytest.raises(ValueError, match=r"call flatten\(\)"):
        plan.linear(torch.zeros(3, 72), None, [], [])
    plan.flatten()
    with pytest.raises(ValueError, match="takes 71 inputs; expected 72"):
        plan.linear(torch.zeros(3, 71), None, [], [])
    with pytest.raises(ValueError, match="state has shape"):
        plan.linear(torch.zeros(3, 72), None, [torch.zeros(3, 71)], [])
    with pytest.raises(ValueError, match="max_pool2d follows a flat row"):
        plan.max_pool2d((2, 2), (2, 2), (0, 0))
    with pytest.raises(ValueError, match=r"p is 1\.5"):
        plan.dropout(1.5)


def test_the_order_of_calls_is_checked() -> None:
    plan = _native.Plan((3,), 4)
    with pytest.raises(ValueError, match="not finished"):
        plan.forward(torch.zeros(1, 3), torch.zeros(1, plan.outputs))
    with pytest.raises(ValueError, match="cross_entropy follows an image or nothing"):
        plan.cross_entropy()
    plan.linear(torch.zeros(2, 3), None, [], [])
    with pytest.raises(ValueError, match="no loss"):
        plan.finish(_native.Rule("sgd"), None, 0)
    plan.cross_entropy()
    with pytest.raises(ValueError, match="add layers before it"):
        plan.relu()
    with pytest.raises(ValueError, match="0 state arrays; expected 2"):
        plan.finish(_native.Rule("adam"), None, 0)
    with pytest.raises(ValueError, match="clip_norm is 0"):
        plan.finish(_native.Rule("sgd"), 0.0, 0)
    plan.finish(_native.Rule("sgd"), None, 0)
    with pytest.raises(ValueError, match="finished already"):
        plan.finish(_native.Rule("sgd"), None, 0)
    assert plan.outputs == 2


def test_a_plan_keeps_its_arrays_alive() -> None:
    plan = _native.Plan((512,), 2)
    plan.linear(torch.ones(256, 512), torch.zeros(256), [], [])
    plan.cross_entropy()
    plan.finish(_native.Rule("sgd"), None, 0)
    gc.collect()
    churn = [torch.full((256, 512), 9.0) for _ in range(4)]
    out = torch.zeros(1, 256)
    plan.forward(torch.ones(1, 512), out)
    assert (out == 512).all()
    del churn


def test_two_threads_may_share_a_plan() -> None:
    peers = peers_of(net(), (1, 8, 8), max_batch=4)
    x, y = torch.randn(400, 1, 8, 8), torch.randint(4, (400,))
    done: list[int] = []
    threads = [
        threading.Thread(target=lambda: done.append(train(peers.plan, x, y, 4, 100)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [100, 100]
    assert all(torch.isfinite(p).all() for p in peers.copy.parameters())
