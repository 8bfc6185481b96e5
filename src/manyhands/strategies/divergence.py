"""The end of a run whose loss is not a number any more: which step, which batch, what to try."""

from __future__ import annotations

from dataclasses import dataclass

from manyhands.errors import TrainingDiverged

_INDICES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Diverged:
    """From a worker to the driver: this batch's loss is not finite; its update was not applied."""

    epoch: int
    batch: int
    loss: float


def diverged(
    epoch: int,
    batch: int,
    step: int,
    loss: float,
    indices: list[int],
    *,
    by_samples: bool = False,
) -> TrainingDiverged:
    """The error that names the step and the batch (all counted from 0, as in the event log).

    `by_samples`: every sample has moved the weights by itself, up to the one that diverged.
    """
    weights = (
        "samples of this batch that came before have moved the weights"
        if by_samples
        else "the weights are as they were before this batch"
    )
    shown = ", ".join(map(str, indices[:_INDICES_SHOWN]))
    more = ", ..." if len(indices) > _INDICES_SHOWN else ""
    return TrainingDiverged(
        f"The loss is {loss} at step {step} (epoch {epoch}, batch {batch}, samples {shown}{more}); "
        f"{weights}. Try a lower learning rate, clip_norm in the optimizer, or look at these "
        "samples.",
        epoch=epoch,
        step=step,
        indices=indices,
    )
