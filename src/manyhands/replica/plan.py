"""From an `nn.Module` to a native plan: which nets the fused kernels can train, and how.

A net without a plan is answered with the reason, and the worker uses autograd instead: a plan is a
faster way to the same result, never a different result.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from manyhands import kernels
from manyhands.optim.native import native_rule
from manyhands.optim.rules import SGD, Rule
from manyhands.replica.chain import Layer, Unplannable, has_hooks, name_of, read_chain
from manyhands.replica.modes import evaluating
from manyhands.replica.shared_weights import States
from manyhands.replica.steps import LossStep, StepFunction


@dataclass(frozen=True, slots=True)
class PlanDescription:
    """A chain that the kernels can train. Plain data: each worker builds its own plan from it."""

    layers: tuple[Layer, ...]
    input_shape: tuple[int, ...]
    label_smoothing: float


def describe(model: nn.Module, step: StepFunction, batch: Any) -> PlanDescription:
    """Read the module as a chain of layers; raises Unplannable with the reason."""
    inputs = _checked_inputs(batch)
    layers = read_chain(model)
    ends_in_log_softmax = bool(layers) and layers[-1].kind == "log_softmax"
    smoothing = _label_smoothing(step, ends_in_log_softmax)
    layers = layers[:-1] if ends_in_log_softmax else layers
    if any(layer.kind == "log_softmax" for layer in layers):
        raise Unplannable("log_softmax in the middle of the net")
    if not any(layer.kind in ("linear", "conv2d") for layer in layers):
        raise Unplannable("no layer with weights")
    _refuse_shared_weights(model, layers)
    return PlanDescription(tuple(layers), tuple(inputs.shape[1:]), smoothing)


def build(
    description: PlanDescription,
    model: nn.Module,
    rule: Rule,
    states: States,
    *,
    max_batch: int,
    seed: int,
    factors: Collection[str] = (),
) -> kernels.Plan:
    """The plan over these shared weights, with its activations and scratch allocated.

    Of the weights named in `factors` it gives factors, in the order of `factored`, and they stay.
    """
    plan = kernels.Plan(description.input_shape, max_batch)
    for layer in description.layers:
        arguments = dict(layer.arguments)
        if layer.module:
            arguments |= _weight_arguments(model, layer.module, states, factors)
        getattr(plan, layer.kind)(**arguments)
    plan.cross_entropy(label_smoothing=description.label_smoothing)
    plan.finish(native_rule(rule), rule.clip_norm, seed)
    return plan


def factored(description: PlanDescription, model: nn.Module, factors: Collection[str]) -> list[str]:
    """The weights named in `factors`, in the order in which the plan gives theirs."""
    first_name = {id(p): n for n, p in model.named_parameters()}
    modules = [model.get_submodule(layer.module) for layer in description.layers if layer.module]
    names = [first_name[id(module.weight)] for module in modules]
    return [name for name in names if name in factors]


def agrees_with_torch(description: PlanDescription, model: nn.Module, batch: Any) -> bool:
    """Whether plan and PyTorch give the same outputs: a net read wrongly must not be trained."""
    inputs = batch[0][:2].contiguous()
    with evaluating(model), torch.no_grad():
        expected = model(inputs)
    nothing_trained: States = {}
    plan = build(description, model, SGD(lr=0.0), nothing_trained, max_batch=len(inputs), seed=0)
    seen = torch.empty(len(inputs), plan.outputs)
    plan.forward(inputs, seen)
    if expected.shape != seen.shape:
        return False
    # A last log_softmax belongs to the loss in the plan; both sides agree after one more.
    return torch.allclose(F.log_softmax(expected, 1), F.log_softmax(seen, 1), 1e-3, 1e-4)


def _checked_inputs(batch: Any) -> torch.Tensor:
    if not (isinstance(batch, (tuple, list)) and len(batch) == 2):
        raise Unplannable("batches are not (inputs, targets)")
    inputs, targets = batch
    if not (isinstance(inputs, torch.Tensor) and isinstance(targets, torch.Tensor)):
        raise Unplannable("batches are not tensors")
    if inputs.dtype != torch.float32 or inputs.dim() not in (2, 4):
        raise Unplannable(f"inputs are {inputs.dtype} of {inputs.dim()} dimensions")
    if targets.dtype != torch.int64 or targets.dim() != 1:
        raise Unplannable("targets are not class numbers")
    return inputs


def _label_smoothing(step: StepFunction, ends_in_log_softmax: bool) -> float:
    if not isinstance(step, LossStep):
        raise Unplannable("a step of the user's own")
    loss = step.loss
    if ends_in_log_softmax:
        if loss is F.nll_loss or (type(loss) is nn.NLLLoss and _is_plain_mean(loss)):
            return 0.0
        raise Unplannable("log_softmax with a loss other than NLLLoss")
    if loss is F.cross_entropy:
        return 0.0
    if type(loss) is nn.CrossEntropyLoss and _is_plain_mean(loss):
        return float(loss.label_smoothing)
    raise Unplannable(f"no kernel for the loss {name_of(loss)}")


def _is_plain_mean(loss: nn.CrossEntropyLoss | nn.NLLLoss) -> bool:
    usual = loss.weight is None and loss.reduction == "mean" and loss.ignore_index == -100
    return usual and not has_hooks(loss)


def _refuse_shared_weights(model: nn.Module, layers: list[Layer]) -> None:
    modules = [model.get_submodule(layer.module) for layer in layers if layer.module]
    used = [id(parameter) for module in modules for parameter in module.parameters()]
    if len(set(used)) != len(used):
        raise Unplannable("two layers share a weight")


def _weight_arguments(
    model: nn.Module, name: str, states: States, factors: Collection[str]
) -> dict[str, Any]:
    module = model.get_submodule(name)
    assert isinstance(module, nn.Linear | nn.Conv2d)
    weight, bias = module.weight, module.bias
    first_name = {id(p): n for n, p in model.named_parameters()}
    arguments: dict[str, Any] = {"weight": weight.detach()}
    arguments["bias"] = None if bias is None else bias.detach()
    if first_name[id(weight)] in factors:
        arguments["factors"] = True
    for role, parameter in (("weight", weight), ("bias", bias)):
        own_name = "" if parameter is None else first_name[id(parameter)]
        trained = own_name in states and own_name not in factors
        arguments[f"{role}_states"] = states[own_name] if trained else []
        arguments[f"train_{role}"] = trained
    return arguments
