"""Before anything starts: one small batch through model and loss, in the driver.

A wrong shape, a wrong type of target or a loss that isn't a scalar is the user's to mend, and is
answered here in a sentence instead of a stack trace from a worker process minutes later.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from manyhands.data.source import Source
from manyhands.errors import (
    ConfigError,
    DataError,
    ManyhandsError,
    ModelError,
    in_a_sentence,
)
from manyhands.evaluation import evaluate
from manyhands.metrics import MetricChoice
from manyhands.optim.rules import Rule
from manyhands.optim.schedules import RateFactor
from manyhands.replica.steps import LossStep, StepFunction
from manyhands.sparse.csr import CSR
from manyhands.strategies.strategy import Strategy

_SAMPLES = 4


def check_job(
    model: nn.Module,
    step: StepFunction,
    strategy: Strategy,
    rule: Rule,
    data: Source,
    batch_size: int,
) -> Any:
    """Try a step on a copy of the model; returns the small batch that was used."""
    batch = small_batch(data, batch_size)
    check_batch(step, batch)
    with torch.random.fork_rng(devices=[]):
        trial = _copy(model)
        loss = _try_step(trial, step, batch)
        _check_loss(loss)
        _try_backward(loss)
    _check_gradients(trial, rule, strategy.sparse_refusal(model, step, rule, batch))
    return batch


def check_validation(
    model: nn.Module, step: StepFunction, source: Source, metrics: Sequence[MetricChoice]
) -> dict[str, float]:
    """Try an evaluation of a few samples on a copy of the model; the figures it gives."""
    batch = small_batch(source, _SAMPLES)
    check_batch(step, batch)
    few = source.subset(np.arange(min(_SAMPLES, len(source))))
    try:
        return evaluate(_copy(model), step, few, metrics, batch_size=_SAMPLES)
    except ManyhandsError:
        raise
    except Exception as error:  # the user's forward, loss and metrics may raise anything
        raise ConfigError(
            f"The model can't be validated on a batch of {_shape_of(batch)}: {in_a_sentence(error)}"
        ) from error


def small_batch(source: Source, batch_size: int) -> Any:
    """The first few samples of a source."""
    if len(source) == 0:
        raise DataError("The data is empty: there is no sample in it.")
    return source.fetch(np.arange(min(_SAMPLES, batch_size, len(source))), seed=0)


def check_schedule(schedule: RateFactor) -> None:
    """Raise ConfigError when a schedule doesn't give a factor for a step."""
    try:
        factors = [float(schedule(step, 10)) for step in (0, 9)]
    except Exception as error:  # the user's own function
        raise ConfigError(
            f"The schedule can't be asked for (step, total_steps): {in_a_sentence(error)}"
        ) from error
    for factor in factors:
        if not math.isfinite(factor) or factor < 0:
            raise ConfigError(
                f"The schedule gives {factor!r}; expected a factor on the rate, a number >= 0."
            )


def check_batch(step: StepFunction, batch: Any) -> None:
    """Raise ConfigError when a batch is not what the step expects."""
    if isinstance(step, LossStep) and not (isinstance(batch, (tuple, list)) and len(batch) == 2):
        raise ConfigError(
            f"A batch of this data is {_shape_of(batch)}, not (inputs, targets): pass "
            "step=function(model, batch) -> loss to the Trainer for data of another form."
        )


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:  # a module may refuse to be copied in any way it likes
        raise ModelError(
            f"The model can't be copied ({in_a_sentence(error)}): it must be an ordinary nn.Module "
            "whose tensors are parameters and buffers."
        ) from error


def _try_step(model: nn.Module, step: StepFunction, batch: Any) -> Any:
    try:
        return step(model, batch)
    except ManyhandsError:
        raise
    except Exception as error:  # the user's forward and loss may raise anything
        raise ConfigError(
            f"The model and loss can't take a batch of {_shape_of(batch)}: {in_a_sentence(error)}"
        ) from error


def _try_backward(loss: torch.Tensor) -> None:
    try:
        loss.backward()  # type: ignore[no-untyped-call]
    except Exception as error:  # custom autograd functions are the user's code as well
        raise ModelError(f"The model can't be differentiated: {in_a_sentence(error)}") from error


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ConfigError(
            f"The loss is {_shape_of(loss)}; expected a tensor with one number (reduction='mean')."
        )
    if not loss.requires_grad:
        raise ModelError(
            "The loss doesn't depend on any trainable parameter: check requires_grad and that "
            "nothing detaches the graph."
        )


def _check_gradients(model: nn.Module, rule: Rule, refusal: str | None) -> None:
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if refusal is not None and gradient is not None and gradient.layout != torch.strided:
            raise ModelError(
                f"Parameter '{name}' has sparse gradients and {type(rule).__name__} can't follow "
                f"them: {refusal}. Use a rule without it (or sparse=False in an embedding)."
            )


def _shape_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, CSR):
        return f"CSR{list(value.shape)}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(_shape_of(item) for item in value) + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_shape_of(v)}" for k, v in value.items()) + "}"
    return type(value).__name__
