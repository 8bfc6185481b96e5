"""What a strategy is: the one place where data, replica and parameter servers meet.

The trainer knows only this interface. A strategy says how a model is trained; where its processes
run and what is done with the result are other people's affairs.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from manyhands.data.source import Source
from manyhands.errors import ConfigError
from manyhands.optim.rules import Adagrad, Rule
from manyhands.optim.schedules import RateFactor
from manyhands.replica.steps import StepFunction
from manyhands.strategies import update_counts
from manyhands.telemetry.events import Event

_BATCH_NORM_SAMPLES = 16


@dataclass(frozen=True, slots=True)
class EMA:
    """An exponential moving average of the weights, which is what gets validated and saved.

    Updated every `every` steps. Early in a run the decay is lower, min(decay, (1+n)/(10+n)) after
    n steps, so that the start of training is forgotten.
    """

    decay: float = 0.999
    every: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise ConfigError(f"EMA: decay is {self.decay!r}; expected 0 < decay < 1.")
        if self.every < 1:
            raise ConfigError(f"EMA: every is {self.every!r}; expected a number of steps >= 1.")

    def decay_over(self, first_step: int, steps: int) -> float:
        """The decay of one update that covers these steps (counted from 0)."""
        return float(min(self.decay, (1 + first_step) / (10 + first_step)) ** steps)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """Everything a strategy needs to know, checked by the trainer before it gets here.

    `run_dir` is where it may keep files of its own. `resumed_at` is when the checkpoint was written
    that the run goes on from, in seconds since 1970; None for a run that begins.
    """

    model: nn.Module
    step: StepFunction
    rule: Rule
    schedule: RateFactor
    source: Source
    sample: Any  # one small batch, as fetched
    batch_size: int
    epochs: int
    seed: int
    shuffle: bool
    ema: EMA | None
    emit: Callable[[Event], None]
    run_dir: Path | None = None
    resumed_at: float | None = None
    piece_samples: int = 256  # fetched at once, where batches are smaller

    @property
    def batches_per_epoch(self) -> int:
        """Batches that an epoch has.

        A last batch of one sample is left out when the model has BatchNorm, which can't normalise
        a single sample.
        """
        full, rest = divmod(len(self.source), self.batch_size)
        if rest == 1 and full and self.has_batch_norm:
            return full
        return full + (1 if rest else 0)

    @property
    def samples_per_epoch(self) -> int:
        """Samples that an epoch visits."""
        return min(len(self.source), self.batches_per_epoch * self.batch_size)

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.epochs * self.batches_per_epoch

    def rates(self, first_step: int, count: int) -> npt.NDArray[np.float64]:
        """The learning rates of `count` steps (counted from 0)."""
        factors = [
            self.schedule(step, self.total_steps) for step in range(first_step, first_step + count)
        ]
        return self.rule.lr * np.asarray(factors, dtype=np.float64)

    def piece_seed(self, epoch: int, piece: int) -> int:
        """What fixes the randomness of one fetched piece, on whichever worker fetches it."""
        return ((self.seed * 1_000_003 + epoch) * 1_000_003 + piece) & 0x7FFF_FFFF_FFFF_FFFF

    def worker_seed(self, number: int) -> int:
        """What a worker process starts its own generators from; another for every process."""
        return self.piece_seed(os.getpid(), number)

    def shared_out(self, workers: int) -> TrainingJob:
        """The same training in steps of a worker's share of the batch.

        As many samples are under way as in one batch, and one batch's samples move the weights as
        far: the rate of a share is the rate of the batch times its size. An average forgets per
        sample, not per step. Adagrad scales itself: its rate falls with the gradients it sees.
        """
        size = max(self._smallest_share(), round(self.batch_size / workers))
        part = size / self.batch_size
        scale = 1.0 if isinstance(self.rule, Adagrad) else part
        ema = self.ema and replace(self.ema, decay=self.ema.decay**part)
        return replace(
            self, batch_size=size, rule=replace(self.rule, lr=self.rule.lr * scale), ema=ema
        )

    def _smallest_share(self) -> int:
        # BatchNorm needs samples to normalise over: shares stay large enough for its statistics.
        return min(self.batch_size, _BATCH_NORM_SAMPLES) if self.has_batch_norm else 1

    @property
    def has_batch_norm(self) -> bool:
        """Whether the model normalises over its batch."""
        batch_norm = nn.modules.batchnorm._BatchNorm
        return any(isinstance(module, batch_norm) for module in self.model.modules())

    def for_workers(self, source: Source) -> TrainingJob:
        """The job as a worker process gets it: with shared data, without what is the driver's."""
        return replace(self, source=source, sample=None, emit=_unheard)


def _unheard(event: Event) -> None:
    """Events of a worker reach the driver as messages, not through the stream."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochSummary:
    """What an epoch's training amounted to."""

    samples: int
    seconds: float
    loss: float
    step: int
    lr: float


class Session(ABC):
    """A job under way. A context manager: leaving it stops every process and frees every resource.

    The job's model always holds the current weights; `averaged` their moving average.
    """

    @abstractmethod
    def train_epoch(self, epoch: int) -> EpochSummary:
        """Train one epoch, emitting progress. Raises TrainingDiverged or WorkerError."""

    @abstractmethod
    def averaged(self) -> dict[str, torch.Tensor] | None:
        """The moving average by parameter name, or None when the job keeps none."""

    @abstractmethod
    def optimizer_state(self) -> dict[str, torch.Tensor]:
        """The optimizer's tensors by name, for a checkpoint."""

    @abstractmethod
    def load(
        self,
        optimizer: dict[str, torch.Tensor],
        averaged: dict[str, torch.Tensor] | None,
        step: int,
    ) -> None:
        """Go on from a checkpoint's optimizer state and average; the model is loaded already."""

    @abstractmethod
    def close(self) -> None:
        """Stop and clean up; may be called twice."""

    def command(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer what somebody asks of the run from outside, in plain values.

        `{"command": "replicas"}`, `{"command": "add", "count": 2}` and `{"command": "remove", ...}`
        are answered by `{"ok": True, "replicas": [{"replica", "pid", "samples_per_s"}, ...]}`;
        `servers`, `add_servers` and `drain` (of a "server") by a list of "servers". A refusal is
        `{"ok": False, "message": "one sentence"}`. Comes on a thread of its own while an epoch is
        trained, one request at a time.
        """
        del request
        return {
            "ok": False,
            "message": "The strategy of this run has no replicas and no servers; downpour has.",
        }

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Strategy(ABC):
    """How to train. Plain data until `start`."""

    name: ClassVar[str] = ""

    @property
    @abstractmethod
    def worker_count(self) -> int:
        """How many workers will train, in all replicas together."""

    @property
    def replica_count(self) -> int:
        """How many replicas a run begins with; 0 where there is one copy of the weights."""
        return 0

    @property
    def server_count(self) -> int:
        """How many parameter servers hold the weights."""
        return 0

    @abstractmethod
    def check(self, model: nn.Module, rule: Rule) -> None:
        """Raise ModelError for what this strategy can't train, before anything starts."""

    def sparse_refusal(
        self, model: nn.Module, step: StepFunction, rule: Rule, batch: Any
    ) -> str | None:
        """Why this strategy can't follow sparse gradients with this rule, or None if it can."""
        del model, step, batch
        return rule.sparse_refusal()

    @abstractmethod
    def start(self, job: TrainingJob) -> Session:
        """Begin a job whose model was checked."""

    def to_dict(self) -> dict[str, Any]:
        """The strategy as plain values, for a run's configuration."""
        return {"name": self.name, "workers": self.worker_count}


def checked_state(
    wanted: dict[str, torch.Tensor], found: dict[str, torch.Tensor], what: str
) -> None:
    """Raise ConfigError when a checkpoint's tensors are not those of this run.

    Counts of updates, which not every strategy keeps, may be missing.
    """
    wanted, found = update_counts.without(wanted), update_counts.without(found)
    if set(wanted) != set(found):
        odd = sorted(set(wanted) ^ set(found))[0]
        raise ConfigError(
            f"The checkpoint's {what} doesn't fit this run (it differs at '{odd}'): resume with "
            "the same model and the same optimizer."
        )
    for name, tensor in wanted.items():
        if tensor.shape != found[name].shape:
            raise ConfigError(
                f"The checkpoint's {what} has shape {tuple(found[name].shape)} for '{name}', this "
                f"run {tuple(tensor.shape)}: resume with the same model."
            )
