"""Which form each parameter's updates take in a run, and how that is told (Adam, 3.2.6)."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import nn

from manyhands.errors import ModelError
from manyhands.parameter_server.forms import FormChoice, choose_form, size
from manyhands.parameter_server.shard_map import Form
from manyhands.replica.factors import samples_of_factors
from manyhands.replica.shared_weights import trainable
from manyhands.sparse.csr import CSR
from manyhands.sparse.lsh_linear import LSHLinear
from manyhands.strategies.strategy import TrainingJob

_NAMES_SHOWN = 3


def choose_forms(
    job: TrainingJob,
    *,
    batches: int,
    compress: str | None,
    keep: float,
    wanted: Mapping[str, str],
    factors: bool = True,
) -> dict[str, FormChoice]:
    """The form of every trainable parameter for pushes of so many batches, tried on the sample.

    Without `factors`, linear layers give gradients alone.
    """
    # Clipping needs the norm of every gradient, and a gradient in factors is never formed.
    is_tried = factors and not job.rule.clip_norm
    linear = samples_of_factors(job.model, job.step, job.sample) if is_tried else {}
    touched = _rows_touched(job)
    of_batches = _shared_by_batches(job.model)
    choices = {}
    for name, parameter in trainable(job.model).items():
        rows = linear.get(name, touched.get(name, 0))
        larger = 1.0 if name in of_batches else job.batch_size / _sample_size(job)
        choices[name] = choose_form(
            name,
            tuple(parameter.shape),
            samples=math.ceil(rows * batches * larger),
            is_linear=name in linear,
            sparse=name in touched,
            encoding=compress or "float32",
            keep=keep,
            wanted=wanted.get(name),
        )
        refusal = job.rule.sparse_refusal()
        if name in touched and refusal is not None:
            raise ModelError(
                f"Parameter '{name}' has sparse gradients and {type(job.rule).__name__} can't "
                f"follow them: {refusal}. Use sparse=False or a rule without it."
            )
    return choices


def all_deltas(job: TrainingJob, *, compress: str | None, keep: float) -> dict[str, FormChoice]:
    """Dense updates for everything: what moved weights are."""
    return {
        name: choose_form(
            name,
            tuple(parameter.shape),
            samples=0,
            is_linear=False,
            sparse=False,
            encoding=compress or "float32",
            keep=keep,
        )
        for name, parameter in trainable(job.model).items()
    }


def total_bytes(choices: Mapping[str, FormChoice]) -> int:
    """What a push of all parameters weighs."""
    return sum(choice.push_bytes for choice in choices.values())


def in_words(choices: Mapping[str, FormChoice]) -> list[str]:
    """A sentence for each form in use: whose it is, what a push weighs, and why."""
    by_form: dict[Form, list[str]] = defaultdict(list)
    for name, choice in choices.items():
        by_form[choice.form].append(name)
    return [_sentence(form, names, choices) for form, names in by_form.items()]


def _sentence(form: Form, names: list[str], choices: Mapping[str, FormChoice]) -> str:
    total = size(total_bytes({name: choices[name] for name in names}))
    if form is Form.DELTA and len(names) == len(choices):
        return f"pushes: all {len(names)} parameters as deltas, {total} a push"
    if form is Form.DELTA:
        shown = ", ".join(names[:_NAMES_SHOWN])
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        return f"pushes: {shown}{more} as deltas, {total} a push"
    return "pushes: " + "; ".join(choices[name].why for name in names)


def _rows_touched(job: TrainingJob) -> dict[str, int]:
    """Parameters with sparse gradients, and the rows that the sample batch touches of each."""
    twin = copy.deepcopy(job.model)
    with torch.random.fork_rng(devices=[]):
        job.step(twin, job.sample).backward()  # type: ignore[no-untyped-call]
    return {
        name: len(p.grad.coalesce().indices()[0])
        for name, p in twin.named_parameters()
        if p.grad is not None and p.grad.layout != torch.strided
    }


def _shared_by_batches(model: nn.Module) -> set[str]:
    """Parameters of layers that choose rows for a batch as a whole, however many samples it has."""
    return {
        f"{path}.{name}".lstrip(".")
        for path, module in model.named_modules()
        if isinstance(module, LSHLinear) and module.share == "batch"
        for name, _ in module.named_parameters(recurse=False)
    }


def _sample_size(job: TrainingJob) -> int:
    """Samples in the sample batch; 1 where a batch doesn't say."""
    first = job.sample[0] if isinstance(job.sample, (tuple, list)) and job.sample else job.sample
    counts = isinstance(first, CSR) or (isinstance(first, torch.Tensor) and first.dim() > 0)
    return max(1, len(first)) if counts else 1
