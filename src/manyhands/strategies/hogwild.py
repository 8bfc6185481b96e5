"""Hogwild: workers that share one copy of the weights and update it without locks.

Adam, sections 3.2.1 to 3.2.4. How an epoch goes:

    driver                                       each worker process
    ------                                       -------------------
 1  resets the board, sends EpochStart   ---->
 2                                               claims the next piece (atomic add, no lock)
 3                                               background thread fetches it; meanwhile
 4                                               trains on the piece before: the shared weights
                                                 move after every batch
 5  reads the board, shows progress              marks the piece done on the board
 6  a worker dies: its unfinished pieces
    go to the one that takes its place
 7                                       <----   EpochDone when no piece is left

A piece is a few hundred samples, cut into batches; the rate of a batch follows from its number, so
workers need no common clock.

A net with a wide sparse layer (mh.sparse.LSHLinear) has one process whose workers are threads of
the native trainer: they share its hash tables, and take a batch together or a sample each.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import nn

from manyhands import kernels
from manyhands.data.source import epoch_order
from manyhands.errors import ConfigError, TrainingDiverged
from manyhands.optim.rules import Rule
from manyhands.replica.board import Board
from manyhands.replica.layout import likes_channels_last
from manyhands.replica.pool import usable_cores
from manyhands.replica.shared_weights import refuse_what_cannot_be_shared
from manyhands.replica.steps import StepFunction
from manyhands.sparse.fast_trainer import row_matrices
from manyhands.strategies.divergence import Diverged, diverged
from manyhands.strategies.hogwild_worker import EpochDone, EpochStart, HogwildWorker
from manyhands.strategies.native_form import counted, fast_path, form_in_words, planned
from manyhands.strategies.pieces import pieces_per_epoch
from manyhands.strategies.shared_session import SharedSession
from manyhands.strategies.strategy import EpochSummary, Session, Strategy, TrainingJob
from manyhands.telemetry.events import Note, Progress

_LOOK_EVERY_S = 0.2
_FAST_PIECE_SAMPLES = 4096  # the fast path trains thousands of samples in the time of a message


@dataclass(frozen=True, slots=True)
class Hogwild(Strategy):
    """Lock-free training on this machine: `workers` processes, by default one per core.

    With `share_batch` each worker takes its share of the batch per step, at a rate to match, so
    that the same batch size and rate give the same training with any number of workers. Without
    it each worker takes whole batches: fewer updates, more samples per second on large nets, and a
    rate that has to be found for that many workers. Where the workers are threads of the fast path
    of sparse layers, they share whole batches in any case.

    `wide_weights="bfloat16"` is for that fast path: the wide layer's weights are trained as
    bfloat16, rounded at random, for half of their bytes in the memory's traffic. The module itself
    keeps float32.
    """

    workers: int | None = None
    share_batch: bool = True
    wide_weights: str = "float32"

    name: ClassVar[str] = "hogwild"

    def __post_init__(self) -> None:
        if self.workers is not None and (not isinstance(self.workers, int) or self.workers < 1):
            raise ConfigError(
                f"Hogwild: workers is {self.workers!r}; expected at least 1, or None for one per "
                "core."
            )
        if self.wide_weights not in ("float32", "bfloat16"):
            raise ConfigError(
                f"Hogwild: wide_weights is {self.wide_weights!r}; expected 'float32' or 'bfloat16'."
            )

    @property
    def worker_count(self) -> int:
        return self.workers or usable_cores()

    def check(self, model: nn.Module, rule: Rule) -> None:
        refuse_what_cannot_be_shared(model)

    def sparse_refusal(
        self, model: nn.Module, step: StepFunction, rule: Rule, batch: Any
    ) -> str | None:
        refusal = replace(rule, weight_decay=0.0).sparse_refusal()
        if refusal is not None or not rule.weight_decay:
            return refusal
        path, reason = fast_path(model, step, rule, batch)
        if path is not None:
            return None  # rows make decay good later
        instead = f" (LSHLinear's fast path would make it good, but can't train this net: {reason})"
        return f"{rule.sparse_refusal()}{instead if reason else ''}"

    def start(self, job: TrainingJob) -> Session:
        return HogwildSession(
            job,
            self.worker_count,
            share_batch=self.share_batch,
            narrow=self.wide_weights == "bfloat16",
        )

    def to_dict(self) -> dict[str, Any]:
        parts = {"name": self.name, "workers": self.worker_count, "share_batch": self.share_batch}
        return parts if self.wide_weights == "float32" else {**parts, "wide_weights": "bfloat16"}


class HogwildSession(SharedSession):
    """The driver's side: starts the workers, watches them, gives a dead one's pieces back."""

    def __init__(
        self, job: TrainingJob, workers: int, *, share_batch: bool, narrow: bool = False
    ) -> None:
        self._fast_path, reason = fast_path(job.model, job.step, job.rule, job.sample)
        if narrow and self._fast_path is None:
            raise ConfigError(
                "Hogwild: wide_weights='bfloat16' is for the fast path of sparse layers, which "
                f"can't train this net ({reason or 'it has no LSHLinear'}); leave it at 'float32'."
            )
        self._narrow = narrow
        self._threads = workers
        self._plan = None
        if self._fast_path is not None:
            workers, share_batch = 1, False
            job = replace(job, piece_samples=_FAST_PIECE_SAMPLES)
            kind = f"{kernels.simd()}, bfloat16" if narrow else kernels.simd()
            form = f"{counted(self._threads, 'thread')}, native sparse layers ({kind})"
        else:
            self._plan, no_plan = planned(job)
            form = f"{counted(workers, 'worker')}, {form_in_words(reason or no_plan)}"
        self._channels_last = self._plan is None and likes_channels_last(
            job.model, job.step, job.sample
        )
        shared = job.shared_out(workers) if share_batch else job
        by_rows: list[str] = []
        if self._fast_path is not None and not narrow and job.ema is None:
            # A moving average walks over weights from end to end, and bfloat16 has its own.
            by_rows = row_matrices(self._fast_path, job.model)
        super().__init__(shared, workers, channels_last=self._channels_last, by_rows=by_rows)
        self._whole = job
        self._rate_scale = shared.rule.lr / job.rule.lr if job.rule.lr else 1.0
        self._worker_job, self._board_tensors = self._place_data()
        self._board = Board(*self._board_tensors)
        job.emit(Note(message=f"Hogwild: {form}"))

    def train_epoch(self, epoch: int) -> EpochSummary:
        if not self._pool.pids:
            self._pool.start()
        self._board.reset()
        self._pool.broadcast(EpochStart(epoch))
        started = time.monotonic()
        training = set(range(self._workers))
        while training:
            for number, message in self._pool.receive(_LOOK_EVERY_S):
                if self._is_done(number, message, epoch):
                    training.discard(number)
                else:
                    training.add(number)
            if not training and self._board.unfinished:
                # Somebody died between claiming a piece and signing for it.
                self._pool.send(0, EpochStart(epoch, self._board.unfinished))
                training.add(0)
            self._show(epoch, time.monotonic() - started)
        return self._summary(epoch, time.monotonic() - started)

    def _is_done(self, number: int, message: object, epoch: int) -> bool:
        """Act on a worker's message; True when that worker is done with the epoch."""
        if isinstance(message, EpochDone):
            return message.epoch == epoch
        if isinstance(message, Diverged):
            raise self._divergence(message)
        returned = self._board.unfinished_of(number)
        lost = self._pool.replace(number)
        self._pool.send(number, EpochStart(epoch, returned))
        self._job.emit(lost)
        return False

    def _divergence(self, message: Diverged) -> TrainingDiverged:
        job, size = self._job, self._job.batch_size
        order = epoch_order(
            len(job.source), epoch=message.epoch, seed=job.seed, shuffle=job.shuffle
        )
        indices = order[message.batch * size : (message.batch + 1) * size].tolist()
        whole = message.batch * size // self._whole.batch_size  # the batch as the user counts them
        step = message.epoch * self._whole.batches_per_epoch + whole
        by_samples = self._fast_path is not None and self._fast_path.share == "sample"
        return diverged(message.epoch, whole, step, message.loss, indices, by_samples=by_samples)

    def _show(self, epoch: int, seconds: float) -> None:
        job, samples = self._job, self._board.samples
        if not samples:
            return
        step = epoch * job.batches_per_epoch + samples // job.batch_size
        self._job.emit(
            Progress(
                epoch=epoch,
                samples_done=min(samples, job.samples_per_epoch),
                samples_total=job.samples_per_epoch,
                samples_per_s=samples / seconds if seconds else 0.0,
                loss=self._board.loss,
                lr=self._rate(step),
            )
        )

    def _summary(self, epoch: int, seconds: float) -> EpochSummary:
        job = self._job
        step = (epoch + 1) * job.batches_per_epoch
        return EpochSummary(
            samples=self._board.samples,
            seconds=seconds,
            loss=self._board.loss,
            step=(epoch + 1) * self._whole.batches_per_epoch,
            lr=self._rate(step - 1),
        )

    def _rate(self, step: int) -> float:
        """The rate of a step as the user counts it, for a whole batch."""
        return float(self._job.rates(step, 1)[0]) / self._rate_scale

    def close(self) -> None:
        self._board.stop()
        super().close()

    def _place_data(
        self,
    ) -> tuple[TrainingJob, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        job = self._job
        *data, counters, owners, losses = self._place(
            [*job.source.tensors(), *Board.blank(pieces_per_epoch(job), self._workers)]
        )
        return job.for_workers(job.source.with_tensors(data)), (counters, owners, losses)

    def _task(self, number: int) -> HogwildWorker:
        return HogwildWorker(
            number=number,
            job=self._worker_job,
            weights=self._weights,
            board=self._board_tensors,
            plan=self._plan,
            fast_path=self._fast_path,
            threads=self._threads,
            narrow=self._narrow,
            channels_last=self._channels_last,
        )
