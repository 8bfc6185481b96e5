"""Validation metrics: by name, or any function of (outputs, targets).

A named metric adds up batch by batch and keeps nothing; a function of the user's own sees all
outputs and targets at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

import torch

from manyhands.errors import ConfigError
from manyhands.ranking import DiscountedGainAt, PrecisionAt
from manyhands.sparse.csr import CSR

# What a history record holds besides metrics.
RESERVED = ("epoch", "train_loss", "samples_per_s", "seconds", "lr")

MetricFunction = Callable[[torch.Tensor, torch.Tensor], float | torch.Tensor]
MetricChoice = str | MetricFunction


class Metric(Protocol):
    """Adds up over batches. One object serves one evaluation."""

    def update(self, outputs: torch.Tensor, targets: Any) -> None: ...

    def value(self) -> float: ...


class _Mean:
    """The mean over samples of what a function gives for each of them."""

    def __init__(self, per_sample: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        self._per_sample = per_sample
        self._sum = 0.0
        self._samples = 0

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        _refuse_label_sets(targets)
        values = self._per_sample(outputs, targets).double()
        self._sum += float(values.sum())
        self._samples += values.numel()

    def value(self) -> float:
        return self._sum / max(1, self._samples)


class _MacroF1:
    """The mean over classes of the harmonic mean of precision and recall."""

    def __init__(self) -> None:
        self._counts: torch.Tensor | None = None

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        _refuse_label_sets(targets)
        classes = outputs.shape[1]
        if self._counts is None:
            self._counts = torch.zeros(classes, classes, dtype=torch.int64)
        flat = targets.reshape(-1) * classes + outputs.argmax(1).reshape(-1)
        self._counts += torch.bincount(flat, minlength=classes**2).reshape(classes, classes)

    def value(self) -> float:
        if self._counts is None:
            return 0.0
        hits = self._counts.diagonal().double()
        either = self._counts.sum(0) + self._counts.sum(1)
        present = either > 0
        return float((2 * hits[present] / either[present]).mean())


class _Whole:
    """A user's function, called once on everything."""

    def __init__(self, function: MetricFunction) -> None:
        self._function = function
        self._outputs: list[torch.Tensor] = []
        self._targets: list[torch.Tensor] = []

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self._outputs.append(outputs)
        self._targets.append(targets)

    def value(self) -> float:
        return float(self._function(torch.cat(self._outputs), _joined(self._targets)))


def _refuse_label_sets(targets: object) -> None:
    if isinstance(targets, CSR):
        raise ConfigError(
            "This metric compares with one target for each output or sample, and the data has a "
            "set of labels for each: use p@1, p@3, p@5 or ndcg@1, ndcg@3, ndcg@5."
        )


def _joined(parts: list[Any]) -> Any:
    """Targets of all batches as one."""
    if not isinstance(parts[0], CSR):
        return torch.cat(parts)
    counts = torch.cat([torch.zeros(1, dtype=torch.int64), *(part.counts for part in parts)])
    values = [part.values for part in parts if part.values is not None]
    return CSR.unchecked(
        counts.cumsum(0),
        torch.cat([part.columns for part in parts]),
        torch.cat(values) if values else None,
        parts[0].width,
    )


def _correct(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    if targets.is_floating_point() and outputs.shape == targets.shape:  # one logit per label
        return (outputs > 0) == (targets > 0.5)
    return outputs.argmax(1) == targets


def _in_top5(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    best = outputs.topk(min(5, outputs.shape[1]), dim=1).indices
    return (best == targets.unsqueeze(1)).any(1)


METRICS: Mapping[str, Callable[[], Metric]] = {
    "accuracy": lambda: _Mean(_correct),
    "top5": lambda: _Mean(_in_top5),
    "f1": _MacroF1,
    "mse": lambda: _Mean(lambda outputs, targets: (outputs - targets) ** 2),
    "mae": lambda: _Mean(lambda outputs, targets: (outputs - targets).abs()),
    **{f"p@{k}": partial(PrecisionAt, k) for k in (1, 3, 5)},
    **{f"ndcg@{k}": partial(DiscountedGainAt, k) for k in (1, 3, 5)},
}


def name_of(choice: MetricChoice) -> str:
    """The name under which a metric is reported."""
    if isinstance(choice, str):
        return choice
    return getattr(choice, "__name__", type(choice).__name__).strip("<>")


def check(choices: Iterable[MetricChoice]) -> tuple[MetricChoice, ...]:
    """The choices as a tuple; raises ConfigError for an unknown or doubled name."""
    chosen = (choices,) if isinstance(choices, str) or callable(choices) else tuple(choices)
    for choice in chosen:
        if isinstance(choice, str) and choice not in METRICS:
            near = difflib.get_close_matches(choice, METRICS, 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise ConfigError(
                f"There is no metric '{choice}'.{hint} Known: {', '.join(METRICS)}; or pass a "
                "function of (outputs, targets)."
            )
        if not isinstance(choice, str) and not callable(choice):
            raise ConfigError(f"A metric is a name or a function; got {type(choice).__name__}.")
    names = [name_of(choice) for choice in chosen]
    for name in names:
        if names.count(name) > 1 or name == "loss" or name in RESERVED:
            raise ConfigError(
                f"The name '{name}' is taken, by another metric or by what every run reports "
                f"(loss, {', '.join(RESERVED)}): give your function another __name__."
            )
    return chosen


def start(choices: Iterable[MetricChoice]) -> dict[str, Metric]:
    """Fresh metrics for one evaluation, by name."""
    return {
        name_of(choice): METRICS[choice]() if isinstance(choice, str) else _Whole(choice)
        for choice in choices
    }
