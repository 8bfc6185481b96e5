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
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import torch
from torch import nn

from manyhands import kernels
from manyhands.data.prefetch import Prefetcher
from manyhands.data.source import epoch_order
from manyhands.errors import ConfigError, TrainingDiverged
from manyhands.launch.role_process import Ready
from manyhands.optim.rules import Rule
from manyhands.replica import plan as native_plan
from manyhands.replica.board import Board
from manyhands.replica.layout import channels_last, likes_channels_last
from manyhands.replica.pool import usable_cores
from manyhands.replica.shared_weights import SharedWeights, refuse_what_cannot_be_shared
from manyhands.replica.steps import AutogradStep, PlanStep, Step, as_it_is, flat
from manyhands.strategies.divergence import diverged
from manyhands.strategies.native_form import counted, form_in_words, planned
from manyhands.strategies.pieces import (
    PieceRequest,
    first_batch,
    part_of,
    piece_request,
    pieces_per_epoch,
)
from manyhands.strategies.shared_session import SharedSession
from manyhands.strategies.strategy import EpochSummary, Session, Strategy, TrainingJob
from manyhands.telemetry.events import Note, Progress

_LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Hogwild(Strategy):
    """Lock-free training on this machine: `workers` processes, by default one per core.

    With `share_batch` each worker takes its share of the batch per step, at a rate to match, so
    that the same batch size and rate give the same training with any number of workers. Without
    it each worker takes whole batches: fewer updates, more samples per second on large nets, and a
    rate that has to be found for that many workers.
    """

    workers: int | None = None
    share_batch: bool = True

    name: ClassVar[str] = "hogwild"

    def __post_init__(self) -> None:
        if self.workers is not None and (not isinstance(self.workers, int) or self.workers < 1):
            raise ConfigError(
                f"Hogwild: workers is {self.workers!r}; expected at least 1, or None for one per "
                "core."
            )

    @property
    def worker_count(self) -> int:
        return self.workers or usable_cores()

    def check(self, model: nn.Module, rule: Rule) -> None:
        refuse_what_cannot_be_shared(model)

    def start(self, job: TrainingJob) -> Session:
        return HogwildSession(job, self.worker_count, share_batch=self.share_batch)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "workers": self.worker_count, "share_batch": self.share_batch}


@dataclass(frozen=True, slots=True)
class EpochStart:
    """To a worker: train this epoch, these returned pieces first."""

    epoch: int
    returned: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EpochDone:
    """From a worker: no piece is left."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Diverged:
    """From a worker: this batch's loss is not finite; the update was not applied."""

    epoch: int
    batch: int
    loss: float


@dataclass(frozen=True, slots=True)
class HogwildWorker:
    """What a worker process runs. Everything large in it is a pointer into shared memory."""

    number: int
    job: TrainingJob
    weights: SharedWeights
    board: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    plan: native_plan.PlanDescription | None
    channels_last: bool

    def run(self, channel: Connection) -> None:
        torch.manual_seed(self.job.worker_seed(self.number))
        board, step = Board(*self.board), self._step()
        channel.send(Ready())
        while True:
            start: EpochStart = channel.recv()
            diverged = self._train(start, board, step)
            channel.send(diverged or EpochDone(start.epoch))

    def _step(self) -> Step:
        job, states = self.job, self.weights.states_of(self.number)
        arrange = channels_last if self.channels_last else as_it_is
        autograd = AutogradStep(job.model, job.step, job.rule, states, arrange=arrange)
        if self.plan is None:
            return autograd
        plan = native_plan.build(
            self.plan,
            job.model,
            job.rule,
            states,
            max_batch=job.batch_size,
            seed=job.worker_seed(self.number),
        )
        return PlanStep(plan, autograd)

    def _train(self, start: EpochStart, board: Board, step: Step) -> Diverged | None:
        requests = self._requests(start, board)
        with Prefetcher(self.job.source, requests, depth=1) as pieces:
            for request, batches in pieces:
                assert isinstance(request, PieceRequest)
                losses = self._train_piece(start.epoch, request, batches, step)
                if isinstance(losses, Diverged):
                    board.stop()
                    return losses
                board.finish(request.piece, self.number, len(request.indices), losses)
                if board.stopped:
                    break
        return None

    def _requests(self, start: EpochStart, board: Board) -> Iterator[PieceRequest]:
        job = self.job
        order = epoch_order(len(job.source), epoch=start.epoch, seed=job.seed, shuffle=job.shuffle)
        returned = iter(start.returned)
        while True:
            piece = next(returned, None)
            if piece is None:
                piece = board.claim(self.number)
            if piece is None:
                return
            yield piece_request(job, order, start.epoch, piece)

    def _train_piece(
        self, epoch: int, request: PieceRequest, batches: Any, step: Step
    ) -> float | Diverged:
        """Train on a piece; its mean loss."""
        job, size = self.job, self.job.batch_size
        samples = len(request.indices)
        count, total = -(-samples // size), 0.0
        # Without an average one call trains the piece; with one, the average moves in between.
        stride = count if job.ema is None else min(job.ema.every, count)
        for offset in range(0, count, stride):
            number = first_batch(job, request.piece) + offset
            part = part_of(batches, offset * size, (offset + stride) * size, whole=stride == count)
            first_step = epoch * job.batches_per_epoch + number
            rates = job.rates(first_step, min(stride, count - offset))
            losses = step.train(part, size, rates, first_step + 1)
            if not math.isfinite(losses[-1]):
                return Diverged(epoch, number + len(losses) - 1, float(losses[-1]))
            done = min((offset + stride) * size, samples) - offset * size
            total += float(losses.mean()) * done
            self._average(first_step, len(losses))
        return total / samples

    def _average(self, first_step: int, steps: int) -> None:
        # Two workers may average at once and lose a part of one another's contribution: the next
        # average, a step later, makes it good, so no lock is worth its price.
        ema = self.job.ema
        if ema is None:
            return
        averaged = [flat(t) for t in self.weights.averaged.values()]
        weights = [flat(t) for t in self.weights.parameters.values()]
        kernels.average(averaged, weights, ema.decay_over(first_step, steps))


class HogwildSession(SharedSession):
    """The driver's side: starts the workers, watches them, gives a dead one's pieces back."""

    def __init__(self, job: TrainingJob, workers: int, *, share_batch: bool) -> None:
        self._plan, reason = planned(job)
        self._channels_last = self._plan is None and likes_channels_last(
            job.model, job.step, job.sample
        )
        shared = job.shared_out(workers) if share_batch else job
        super().__init__(shared, workers, channels_last=self._channels_last)
        self._whole = job
        self._rate_scale = shared.rule.lr / job.rule.lr if job.rule.lr else 1.0
        self._worker_job, self._board_tensors = self._place_data()
        self._board = Board(*self._board_tensors)
        job.emit(Note(message=f"Hogwild: {counted(workers, 'worker')}, {form_in_words(reason)}"))

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
        return diverged(message.epoch, whole, step, message.loss, indices)

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
            channels_last=self._channels_last,
        )
