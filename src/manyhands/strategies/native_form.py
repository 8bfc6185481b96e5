"""Whether a job trains through native code or through autograd, and how that is put."""

from __future__ import annotations

from typing import Any

from torch import nn

from manyhands import kernels
from manyhands.optim.rules import Rule
from manyhands.replica import plan as native_plan
from manyhands.replica.chain import Unplannable
from manyhands.replica.steps import LossStep, StepFunction
from manyhands.sparse.fast_path import FastPath, NoFastPath, describe, is_wide
from manyhands.strategies.strategy import TrainingJob


def planned(job: TrainingJob) -> tuple[native_plan.PlanDescription | None, str]:
    """The job's native plan, or None with the reason why it has none."""
    try:
        description = native_plan.describe(job.model, job.step, job.sample)
        if native_plan.agrees_with_torch(description, job.model, job.sample):
            return description, ""
        return None, "the native plan's outputs differ from PyTorch's"
    except (Unplannable, ValueError) as reason:
        return None, str(reason)


def fast_path(
    model: nn.Module, step: StepFunction, rule: Rule, sample: Any
) -> tuple[FastPath | None, str]:
    """The fast path of a net with a wide sparse layer, or None with the reason.

    The reason is empty where there is no such layer.
    """
    if not is_wide(model):
        return None, ""
    if not isinstance(step, LossStep):
        return None, "a step of the user's own"
    try:
        return describe(model, step.loss, rule, sample), ""
    except NoFastPath as reason:
        return None, str(reason)


def form_in_words(reason: str) -> str:
    """How the steps are computed; `reason` says why not through the plan."""
    return f"PyTorch autograd ({reason})" if reason else f"native plan ({kernels.simd()})"


def counted(count: int, noun: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
