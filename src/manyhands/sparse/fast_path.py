"""The fast path: which nets one native call can train for many batches, with no Python between.

What it can train is a chain: a first layer over sparse or dense input, any number of dense layers,
a ReLU behind each, then `LSHLinear` under one of the losses of `mh.sparse`. Everything else is left
to autograd, which gives the same results where a batch shares its active set (`share="batch"`).
With `share="sample"` the fast path moves the weights after every sample, as SLIDE was published,
and autograd after every batch: the fast path then wants a lower rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from manyhands.optim.rules import Rule
from manyhands.sparse.csr import CSR
from manyhands.sparse.losses import LSHSigmoidLoss, LSHSoftmaxLoss
from manyhands.sparse.lsh_linear import LSHLinear
from manyhands.sparse.sparse_linear import SparseLinear

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class NoFastPath(Exception):
    """The reason why a model is left to autograd."""


@dataclass(frozen=True, slots=True)
class FastPath:
    """A chain that the native trainer understands, by the names of its modules. Plain data."""

    hidden: tuple[str, ...]
    output: str
    loss: str
    share: str = "batch"


def is_wide(model: nn.Module) -> bool:
    """Whether a model has a layer that the fast path is for."""
    return any(isinstance(module, LSHLinear) for module in model.modules())


def describe(model: nn.Module, loss: object, rule: Rule, batch: Any) -> FastPath:
    """Read a model as a chain that batches like this one go through; raises NoFastPath."""
    names = chain_of(model)
    modules = dict(model.named_modules())
    if not names or not isinstance(modules[names[-1]], LSHLinear):
        raise NoFastPath("the last layer is not LSHLinear")
    if len(names) < 3 or len(names) % 2 == 0:
        raise NoFastPath("a hidden layer with a ReLU behind it is missing")
    hidden = names[0:-1:2]
    for at, name in enumerate(hidden):
        _check_hidden(modules[name], first=at == 0)
    for name in names[1:-1:2]:
        if type(modules[name]) is not nn.ReLU:
            raise NoFastPath(f"'{name}' is {type(modules[name]).__name__}, not a ReLU")
    _check_output(modules[names[-1]])
    _check_parameters(model, [*hidden, names[-1]])
    _check_rule(rule)
    _check_batch(modules[hidden[0]], batch)
    share = str(modules[names[-1]].share)
    return FastPath(tuple(hidden), names[-1], _loss_name(loss), share)


def chain_of(model: nn.Module) -> list[str]:
    """The names of a model's layers in the order of its forward; raises NoFastPath."""
    if any(_has_hooks(module) for module in model.modules()):
        raise NoFastPath("a module has hooks")
    if type(model) is not nn.Sequential:
        raise NoFastPath(f"{type(model).__name__} is not an nn.Sequential")
    names: list[str] = []
    for name, module in model.named_children():
        if type(module) is nn.Sequential:
            names.extend(f"{name}.{part}" for part in chain_of(module))
        else:
            names.append(name)
    return names


def _check_hidden(module: nn.Module, *, first: bool) -> None:
    if type(module) is nn.Linear or (first and type(module) is SparseLinear):
        return
    where = "first" if first else "hidden"
    raise NoFastPath(f"the {where} layer is {type(module).__name__}")


def _check_output(layer: nn.Module) -> None:
    if type(layer) is not LSHLinear:
        raise NoFastPath(f"{type(layer).__name__} may compute something else than LSHLinear")
    if not layer.hashes:
        raise NoFastPath(f"all {layer.out_features} outputs are computed")


def _check_parameters(model: nn.Module, layers: Sequence[str]) -> None:
    wanted = {f"{name}.{role}" for name in layers for role in ("weight", "bias")}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name not in wanted:
            raise NoFastPath(f"'{name}' belongs to no layer of the chain")
        if not parameter.requires_grad:
            raise NoFastPath(f"'{name}' is frozen")
        if parameter.dtype != torch.float32 or not parameter.is_contiguous():
            raise NoFastPath(f"'{name}' is not contiguous float32")
    pointers = [p.data_ptr() for _, p in model.named_parameters(remove_duplicate=False)]
    if len(set(pointers)) != len(pointers):
        raise NoFastPath("two layers share a weight")


def _check_rule(rule: Rule) -> None:
    if rule.clip_norm is not None:
        raise NoFastPath("gradients are clipped by their norm")
    refusal = replace(rule, weight_decay=0.0).sparse_refusal()  # decay is made good later
    if refusal is not None:
        raise NoFastPath(refusal)


def _check_batch(first: nn.Module, batch: Any) -> None:
    if not (isinstance(batch, (tuple, list)) and len(batch) == 2):
        raise NoFastPath("batches are not (inputs, targets)")
    inputs = batch[0]
    dense = isinstance(inputs, torch.Tensor) and inputs.layout == torch.strided
    if isinstance(first, SparseLinear):
        if not isinstance(inputs, CSR):
            raise NoFastPath(f"SparseLinear is given {type(inputs).__name__}, not CSR")
    elif not (dense and inputs.dim() == 2 and inputs.dtype == torch.float32):
        raise NoFastPath("inputs are not a float32 matrix")


def _loss_name(loss: object) -> str:
    if _has_hooks(loss):
        raise NoFastPath("the loss has hooks")
    if type(loss) is LSHSoftmaxLoss:
        return "softmax"
    if type(loss) is LSHSigmoidLoss:
        return "sigmoid"
    raise NoFastPath(f"the loss is {getattr(loss, '__name__', type(loss).__name__)}")


def _has_hooks(module: object) -> bool:
    return any(getattr(module, name, None) for name in _HOOKS)
