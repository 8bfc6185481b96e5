"""Whether a job trains through the native plan or through autograd, and how that is put."""

from __future__ import annotations

from manyhands import kernels
from manyhands.replica import plan as native_plan
from manyhands.replica.chain import Unplannable
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


def form_in_words(reason: str) -> str:
    """How the steps are computed; `reason` says why not through the plan."""
    return f"PyTorch autograd ({reason})" if reason else f"native plan ({kernels.simd()})"


def counted(count: int, noun: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
