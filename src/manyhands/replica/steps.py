"""One training step in a worker: forward, backward, and the shared weights move at once.

Two forms do the same work. `PlanStep` hands whole runs of batches to the native plan, for nets it
understands; `AutogradStep` lets PyTorch differentiate anything and applies the fused native update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from manyhands import kernels
from manyhands.errors import ModelError
from manyhands.optim.clipping import clipping
from manyhands.optim.native import native_rule
from manyhands.optim.row_gradients import in_order, in_rows
from manyhands.optim.rules import SGD, Rule
from manyhands.replica.shared_weights import States, trainable

LossFunction = Callable[[Any, Any], torch.Tensor]
StepFunction = Callable[[nn.Module, Any], torch.Tensor]
RowsTaker = Callable[[str, torch.Tensor, torch.Tensor], None]
FactorsTaker = Callable[[str, torch.Tensor, torch.Tensor], None]
Rates = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LossStep:
    """The usual step: a batch is (inputs, targets) and the loss compares outputs with targets."""

    loss: LossFunction

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        return self.loss(model(inputs), targets)


class Step(Protocol):
    """Trains on consecutive batches. Not thread-safe: each worker has its own."""

    def train(self, batches: Any, batch_size: int, rates: Rates, first_step: int) -> Rates:
        """Train on one fetched piece, cut into batches; the loss of each batch done.

        Fewer losses than rates mean that the last loss was not finite; its update was not applied.
        """
        ...


class PlanStep:
    """A step through the native plan: no Python between the batches of a piece.

    `without` trains the pieces that the plan can't. `factored` are the weights whose factors the
    plan gives, with their shapes, in its order; `take_factors` is given them.
    """

    def __init__(
        self,
        plan: kernels.Plan,
        without: AutogradStep,
        *,
        factored: Mapping[str, torch.Size] | None = None,
        take_factors: FactorsTaker = lambda name, a, d: None,
    ) -> None:
        self._plan = plan
        self._without = without
        self._factored = factored or {}
        self._take_factors = take_factors

    def train(self, batches: Any, batch_size: int, rates: Rates, first_step: int) -> Rates:
        inputs, targets = batches
        if int(targets.min()) < 0:  # PyTorch's losses leave out samples marked with -100
            return self._without.train(batches, batch_size, rates, first_step)
        losses = np.full(len(rates), math.nan)
        rows = len(targets)
        factors = {
            name: (torch.empty(rows, width), torch.empty(rows, height))
            for name, (height, width) in self._factored.items()
        }
        places = [(a.numpy(), d.numpy()) for a, d in factors.values()]
        done = self._plan.train(inputs, targets, batch_size, rates, first_step, losses, places)
        for name, (a, d) in factors.items():
            self._take_factors(name, a, d)
        return losses[: min(done + 1, len(rates))]


def as_it_is(batch: Any) -> Any:
    """No arrangement."""
    return batch


class AutogradStep:
    """A step through PyTorch's autograd, for any module. `arrange` lays out each batch first.

    `take_rows` is given the rows and values of every sparse gradient; the rows then take a plain
    step, because whoever takes them also applies the rule.
    """

    def __init__(
        self,
        model: nn.Module,
        step: StepFunction,
        rule: Rule,
        states: States,
        *,
        arrange: Callable[[Any], Any] = as_it_is,
        take_rows: RowsTaker | None = None,
    ) -> None:
        self._model = model
        self._step = step
        self._rule = rule
        self._native_rule = native_rule(rule)
        self._arrange = arrange
        self._take_rows = take_rows
        self._parameters = list(trainable(model).items())
        self._states = states
        # The kernels take NumPy views in a tenth of the time that a tensor needs.
        self._flat_weights = {name: flat(p.data).numpy() for name, p in self._parameters}
        self._flat_states = {name: [flat(s).numpy() for s in states[name]] for name in states}

    def train(self, batches: Any, batch_size: int, rates: Rates, first_step: int) -> Rates:
        losses: list[float] = []
        for number, batch in enumerate(cut(batches, batch_size, len(rates))):
            loss = self._step(self._model, self._arrange(batch))
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                break
            loss.backward()  # type: ignore[no-untyped-call]
            self._update(float(rates[number]), first_step + number)
        return np.array(losses)

    def _update(self, rate: float, step: int) -> None:
        moved = [(n, p, in_order(p.grad)) for n, p in self._parameters if p.grad is not None]
        scale = clipping(self._rule, [_values(gradient) for _, _, gradient in moved])
        dense = [(n, p, g) for n, p, g in moved if g.layout == torch.strided]
        kernels.update(
            self._native_rule,
            rate,
            step,
            scale,
            [self._flat_weights[name] for name, _, _ in dense],
            [flat(_like(g, p)).numpy() for _, p, g in dense],
            [self._flat_states[name] for name, _, _ in dense],
        )
        for name, parameter, gradient in moved:
            if gradient.layout != torch.strided:
                self._update_rows(name, parameter, gradient, rate, step, scale)
            parameter.grad = None

    def _update_rows(
        self,
        name: str,
        parameter: nn.Parameter,
        gradient: torch.Tensor,
        rate: float,
        step: int,
        scale: float,
    ) -> None:
        refusal = self._rule.sparse_refusal()
        if refusal is not None:
            raise ModelError(
                f"Parameter '{name}' has sparse gradients and {type(self._rule).__name__} can't "
                f"follow them: {refusal}. Use sparse=False or a rule without it."
            )
        rows, values = gradient.indices()[0].contiguous(), gradient.values().contiguous()
        states, native = self._states.get(name, []), self._native_rule
        if self._take_rows is not None:
            self._take_rows(name, rows, values * scale)
            states, native = [], kernels.Rule(SGD.name)
        kernels.update_rows(
            native,
            rate,
            step,
            scale,
            in_rows(parameter.data),
            rows,
            in_rows(values),
            [in_rows(state) for state in states],
        )


def cut(batches: Any, batch_size: int, count: int) -> list[Any]:
    """A fetched piece as its batches: views where it holds several, itself where it is one."""
    if count == 1:
        return [batches]
    return [
        tuple(tensor[number * batch_size : (number + 1) * batch_size] for tensor in batches)
        for number in range(count)
    ]


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as one line, whatever its layout; the kernels don't care about shape."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return tensor.permute(0, 2, 3, 1).reshape(-1)
    return tensor.contiguous().view(-1)


def _values(gradient: torch.Tensor) -> torch.Tensor:
    return flat(gradient if gradient.layout == torch.strided else gradient.values())


def _like(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """The gradient in its parameter's memory layout, so that both can be walked side by side."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
