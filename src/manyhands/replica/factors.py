"""Activations and errors of linear layers in place of weight gradients (Adam, section 3.2.6).

A linear layer's weight gradient is the product d^T a of its errors d and its inputs a. A worker
that takes the two factors never multiplies them: the parameter server does. Hooks take them, so
the module and the user's forward stay as they are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from manyhands.errors import ModelError
from manyhands.replica.shared_weights import trainable
from manyhands.replica.steps import StepFunction


@dataclass(frozen=True, slots=True)
class FactorPair:
    """One use of a linear layer: inputs `a` [k, in], errors `d` [k, out]."""

    a: torch.Tensor
    d: torch.Tensor


class FactorCapture:
    """Takes the factors of some weights of a model while others differentiate it.

    The weights stop requiring gradients. For one thread, as the model is.
    """

    def __init__(self, model: nn.Module, weights: Iterable[str]) -> None:
        wanted = set(weights)
        self._taken: dict[str, list[FactorPair]] = {}
        names = {id(p): name for name, p in model.named_parameters() if name in wanted}
        for module in model.modules():
            if type(module) is nn.Linear and id(module.weight) in names:
                self._watch(module, names[id(module.weight)])
        for name, parameter in model.named_parameters():
            if name in wanted:
                parameter.requires_grad_(False)

    def put(self, name: str, a: torch.Tensor, d: torch.Tensor) -> None:
        """Add what somebody else has found of a weight, by other means than autograd."""
        self._taken.setdefault(name, []).append(FactorPair(a, d))

    def take(self) -> dict[str, list[FactorPair]]:
        """What was captured since the last call, by weight."""
        taken, self._taken = self._taken, {}
        return taken

    def _watch(self, module: nn.Linear, name: str) -> None:
        def remember(_: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            if not output.requires_grad:
                return
            a = inputs[0].detach()
            version = a._version

            def take_errors(error: torch.Tensor) -> None:
                if a._version != version:
                    raise ModelError(
                        f"The input of the linear layer with the weight '{name}' is changed in "
                        "place after it was used, so its factors are lost: send this weight as "
                        f"a delta (forms={{'{name}': 'delta'}})."
                    )
                pair = FactorPair(a.reshape(-1, a.shape[-1]), error.reshape(-1, error.shape[-1]))
                self._taken.setdefault(name, []).append(pair)

            output.register_hook(take_errors)  # type: ignore[no-untyped-call]

        module.register_forward_hook(remember)


def samples_of_factors(model: nn.Module, step: StepFunction, batch: Any) -> dict[str, int]:
    """The weights that can travel as factors, and how many pairs of rows this batch gives of each.

    Tried, not guessed: a copy of the model is differentiated both ways, and a weight whose factors
    don't multiply to its gradient (one that is also used elsewhere) is left out.
    """
    candidates = _only_in_linear_layers(model)
    if not candidates:
        return {}
    with torch.random.fork_rng(devices=[]):
        twin = copy.deepcopy(model)
        torch.manual_seed(0)
        step(twin, batch).backward()  # type: ignore[no-untyped-call]
        gradients = {name: p.grad for name, p in twin.named_parameters()}
        twin = copy.deepcopy(model)
        capture = FactorCapture(twin, candidates)
        torch.manual_seed(0)
        loss = step(twin, batch)
        if not loss.requires_grad:
            return {}
        loss.backward()  # type: ignore[no-untyped-call]
        taken = capture.take()
    return {
        name: sum(len(pair.a) for pair in pairs)
        for name, pairs in taken.items()
        if _multiplies_to(pairs, gradients[name])
    }


def _only_in_linear_layers(model: nn.Module) -> list[str]:
    names = {id(p): name for name, p in trainable(model).items()}
    fitting = {id(m.weight) for m in model.modules() if type(m) is nn.Linear}
    for module in model.modules():
        for role, parameter in module.named_parameters(recurse=False):
            if type(module) is not nn.Linear or role != "weight":
                fitting.discard(id(parameter))
    return [name for key, name in names.items() if key in fitting]


def _multiplies_to(pairs: list[FactorPair], gradient: torch.Tensor | None) -> bool:
    if gradient is None or gradient.layout != torch.strided:
        return False
    product = sum((pair.d.T @ pair.a for pair in pairs), torch.zeros_like(gradient))
    size = float(gradient.abs().max())
    if not math.isfinite(size):
        return False  # the first step will say what is wrong
    return bool(torch.allclose(product, gradient, rtol=1e-3, atol=1e-4 * size))


def joined(pairs: list[FactorPair]) -> FactorPair:
    """Several uses of a layer as one pair of matrices."""
    if len(pairs) == 1:
        return FactorPair(pairs[0].a.contiguous(), pairs[0].d.contiguous())
    return FactorPair(torch.cat([p.a for p in pairs]), torch.cat([p.d for p in pairs]))
