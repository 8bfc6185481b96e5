"""What the synchronous sessions share: the order of an epoch's batches, and its account."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from manyhands.data.prefetch import Request
from manyhands.data.source import epoch_order
from manyhands.strategies.strategy import EpochSummary, TrainingJob
from manyhands.telemetry.events import Progress

_LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class BatchRequest(Request):
    """A request that remembers which batch of the epoch it is."""

    batch: int


def batch_requests(job: TrainingJob, epoch: int, first: int = 0) -> Iterator[BatchRequest]:
    """The epoch's batches in order, from the batch `first` on."""
    order = epoch_order(len(job.source), epoch=epoch, seed=job.seed, shuffle=job.shuffle)
    for number in range(first, job.batches_per_epoch):
        indices = order[number * job.batch_size : (number + 1) * job.batch_size]
        yield BatchRequest(indices, job.piece_seed(epoch, number), number)


class EpochAccount:
    """Counts an epoch's samples and losses and emits progress a few times a second."""

    def __init__(self, job: TrainingJob, epoch: int) -> None:
        self._job = job
        self._epoch = epoch
        self._started = self._shown = time.monotonic()
        self._samples = 0
        self._loss = 0.0

    def count(self, samples: int, loss: float, lr: float) -> None:
        self._samples += samples
        self._loss += loss * samples
        now = time.monotonic()
        if now - self._shown >= _LOOK_EVERY_S:
            self._shown = now
            self._emit(now - self._started, lr)

    def _emit(self, seconds: float, lr: float) -> None:
        self._job.emit(
            Progress(
                epoch=self._epoch,
                samples_done=self._samples,
                samples_total=self._job.samples_per_epoch,
                samples_per_s=self._samples / seconds,
                loss=self._loss / self._samples,
                lr=lr,
            )
        )

    def summary(self, lr: float) -> EpochSummary:
        return EpochSummary(
            samples=self._samples,
            seconds=time.monotonic() - self._started,
            loss=self._loss / self._samples,
            step=(self._epoch + 1) * self._job.batches_per_epoch,
            lr=lr,
        )
