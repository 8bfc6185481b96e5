"""A PyTorch model and its compiled plan, trained side by side on the same batches."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from manyhands import _native

Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


class Peers:
    """`model` is trained by PyTorch, a copy of it by the plan."""

    def __init__(
        self,
        model: nn.Sequential,
        input_shape: tuple[int, ...],
        *,
        rule: dict[str, Any],
        optimizer: Optimizer,
        max_batch: int = 65,
        clip_norm: float | None = None,
        label_smoothing: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.copy = copy.deepcopy(model)
        self.clip_norm = clip_norm
        self.loss = nn.CrossEntropyLoss(label_smoothing=label_smoothing)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = optimizer(self.parameters) if self.parameters else None
        self.rule = _native.Rule(**rule)
        self.states: list[torch.Tensor] = []
        self.plan = _native.Plan(input_shape, max_batch)
        for layer in self.copy:
            self._add(layer)
        self.plan.cross_entropy(label_smoothing)
        self.plan.finish(self.rule, clip_norm, seed)

    def _states(self, parameter: nn.Parameter | None) -> list[torch.Tensor]:
        if parameter is None:
            return []
        states = [torch.zeros_like(parameter) for _ in range(self.rule.states)]
        self.states += states
        return states

    def _weights(self, layer: nn.Linear | nn.Conv2d) -> tuple[Any, ...]:
        bias = layer.bias
        return (
            layer.weight.detach(),
            None if bias is None else bias.detach(),
            (self._states(layer.weight), self._states(bias)),
            (layer.weight.requires_grad, bias is not None and bias.requires_grad),
        )

    def _add(self, layer: nn.Module) -> None:
        plan = self.plan
        if isinstance(layer, nn.Linear):
            weight, bias, states, trained = self._weights(layer)
            plan.linear(weight, bias, *states, *trained)
        elif isinstance(layer, nn.Conv2d):
            weight, bias, states, trained = self._weights(layer)
            geometry = (pair(layer.stride), pair(layer.padding), pair(layer.dilation))
            plan.conv2d(weight, bias, *geometry, *states, *trained)
        elif isinstance(layer, nn.MaxPool2d | nn.AvgPool2d):
            add = plan.max_pool2d if isinstance(layer, nn.MaxPool2d) else plan.avg_pool2d
            add(pair(layer.kernel_size), pair(layer.stride), pair(layer.padding))
        elif isinstance(layer, nn.Dropout):
            plan.dropout(layer.p)
        else:
            getattr(plan, type(layer).__name__.lower())()

    def train_torch(self, x: torch.Tensor, y: torch.Tensor, batch_size: int) -> list[float]:
        losses = []
        for xb, yb in zip(x.split(batch_size), y.split(batch_size), strict=True):
            loss = self.loss(self.model(xb), yb)
            losses.append(loss.item())
            if self.optimizer is None:
                continue
            self.optimizer.zero_grad()
            loss.backward()
            if self.clip_norm is not None:
                nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
            self.optimizer.step()
        return losses

    def train_plan(
        self, x: torch.Tensor, y: torch.Tensor, batch_size: int, lr: float, first_step: int = 1
    ) -> list[float]:
        batches = -(-len(x) // batch_size)
        losses = torch.full((batches,), -1.0, dtype=torch.float64)
        lrs = torch.full((batches,), lr, dtype=torch.float64)
        done = self.plan.train(x, y, batch_size, lrs, first_step, losses)
        return losses.tolist()[: done + 1]

    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(x), self.plan.outputs)
        self.plan.forward(x, out)
        return out

    def assert_close(self, rtol: float = 1e-3, atol: float = 2e-5) -> None:
        for (name, ours), theirs in zip(
            self.copy.named_parameters(), self.model.parameters(), strict=True
        ):
            torch.testing.assert_close(
                ours, theirs, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
            )
