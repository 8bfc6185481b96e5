"""Evaluating a model on a source: the loss and the metrics, without touching the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from manyhands import metrics as named_metrics
from manyhands.data.prefetch import Prefetcher, Request
from manyhands.data.source import Source
from manyhands.errors import ConfigError
from manyhands.metrics import Metric, MetricChoice
from manyhands.replica.modes import evaluating
from manyhands.replica.steps import LossStep, StepFunction

_MOST_SAMPLES = 512
_MOST_OUTPUTS = 1 << 25  # numbers in the outputs of one batch: 128 MiB, and a few times that about


@contextmanager
def weights_of(model: nn.Module, weights: Mapping[str, torch.Tensor] | None) -> Iterator[None]:
    """The model with these parameters in place of its own, for the time of the block.

    Only this process's pointers are exchanged: workers that share the weights don't notice.
    """
    own = {name: parameter.data for name, parameter in model.named_parameters()}
    parameters = dict(model.named_parameters())
    try:
        for name, tensor in (weights or {}).items():
            parameters[name].data = tensor
        yield
    finally:
        for name, tensor in own.items():
            parameters[name].data = tensor


def evaluate(
    model: nn.Module,
    step: StepFunction,
    source: Source,
    choices: Sequence[MetricChoice],
    *,
    batch_size: int,
) -> dict[str, float]:
    """The mean loss as 'loss' and every metric by its name.

    `batch_size` is that of training: without gradients a few times as many samples fit in memory.
    """
    if choices and not isinstance(step, LossStep):
        raise ConfigError(
            "Metrics need a loss of (outputs, targets); with a step of your own only the loss is "
            "reported: pass metrics=()."
        )
    metrics = named_metrics.start(choices)
    total, samples = 0.0, 0
    # Not inference_mode: a tensor that the model keeps for later must be fit for training.
    with evaluating(model), torch.no_grad():
        at_once = _samples_at_once(model, step, source, batch_size)
        for request, batch in Prefetcher(source, _requests(len(source), at_once), depth=2):
            loss = _evaluate_batch(model, step, batch, metrics)
            total += loss * len(request.indices)
            samples += len(request.indices)
    return {"loss": total / samples} | {name: m.value() for name, m in metrics.items()}


def _samples_at_once(model: nn.Module, step: StepFunction, source: Source, batch_size: int) -> int:
    """As many samples as are fast; fewer where each has so many outputs that memory would go."""
    usual = min(_MOST_SAMPLES, max(32, 4 * batch_size))
    rows = max((len(p) for p in model.parameters() if p.dim() > 0), default=0)
    if not isinstance(step, LossStep) or rows * usual <= _MOST_OUTPUTS:
        return usual
    # A layer of many rows may be an embedding; a few samples tell how many outputs there are.
    few = min(4, len(source))
    outputs = model(source.fetch(np.arange(few), seed=0)[0])
    numbers = outputs.numel() // few if isinstance(outputs, torch.Tensor) else 1
    return max(1, min(usual, _MOST_OUTPUTS // max(1, numbers)))


def _evaluate_batch(
    model: nn.Module, step: StepFunction, batch: Any, metrics: Mapping[str, Metric]
) -> float:
    if not isinstance(step, LossStep):
        return float(step(model, batch))
    inputs, targets = batch
    outputs = model(inputs)
    for metric in metrics.values():
        metric.update(outputs, targets)
    return float(step.loss(outputs, targets))


def _requests(samples: int, at_once: int) -> Iterator[Request]:
    for start in range(0, samples, at_once):
        yield Request(np.arange(start, min(start + at_once, samples)), 0)
