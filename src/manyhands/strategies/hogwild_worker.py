"""What a worker process of Hogwild runs: pieces claimed from the board, trained on one by one.

Adam, sections 3.2.1 to 3.2.4; the numbered steps of an epoch are drawn in `hogwild.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from manyhands import kernels
from manyhands.data.prefetch import Prefetcher
from manyhands.data.source import epoch_order
from manyhands.launch.role_process import Ready
from manyhands.replica import plan as native_plan
from manyhands.replica.board import Board
from manyhands.replica.layout import channels_last
from manyhands.replica.shared_weights import SharedWeights
from manyhands.replica.sparse_step import SparseStep
from manyhands.replica.steps import AutogradStep, PlanStep, Step, as_it_is, flat
from manyhands.sparse.fast_path import FastPath
from manyhands.sparse.fast_trainer import FastTrainer
from manyhands.sparse.lsh_linear import LSHLinear
from manyhands.strategies.divergence import Diverged
from manyhands.strategies.pieces import PieceRequest, first_batch, part_of, piece_request
from manyhands.strategies.strategy import EMA, TrainingJob


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
class HogwildWorker:
    """What a worker process runs. Everything large in it is a pointer into shared memory."""

    number: int
    job: TrainingJob
    weights: SharedWeights
    board: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    plan: native_plan.PlanDescription | None
    fast_path: FastPath | None
    threads: int  # of the fast path
    narrow: bool  # it trains the wide layer's weights as bfloat16
    channels_last: bool

    def run(self, channel: Connection) -> None:
        # The fast path has one worker, so nobody else draws what the run's own seed gives.
        torch.manual_seed(self.job.seed if self.fast_path else self.job.worker_seed(self.number))
        board, step = Board(*self.board), self._step()
        channel.send(Ready())
        while True:
            start: EpochStart = channel.recv()
            diverged = self._train(start, board, step)
            _catch_up(step)  # the driver looks at the weights now
            channel.send(diverged or EpochDone(start.epoch))

    def _step(self) -> Step:
        job, states = self.job, self.weights.states_of(self.number)
        if self.fast_path is not None:
            return self._fast_step(self.fast_path)
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

    def _fast_step(self, path: FastPath) -> Step:
        job, states = self.job, self.weights.states_of(self.number)
        layer = job.model.get_submodule(path.output)
        assert isinstance(layer, LSHLinear)
        layer.threads = layer.threads or self.threads
        trainer = FastTrainer(
            path,
            job.model,
            job.rule,
            states,
            max_batch=job.batch_size,
            threads=self.threads,
            narrow=self.narrow,
        )
        return SparseStep(trainer)

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
            if job.ema is not None:
                _catch_up(step)
                self._average(job.ema, first_step, len(losses))
        return total / samples

    def _average(self, ema: EMA, first_step: int, steps: int) -> None:
        # Two workers may average at once and lose a part of one another's contribution: the next
        # average, a step later, makes it good, so no lock is worth its price.
        averaged = [flat(t) for t in self.weights.averaged.values()]
        weights = [flat(t) for t in self.weights.parameters.values()]
        kernels.average(averaged, weights, ema.decay_over(first_step, steps))


def _catch_up(step: Step) -> None:
    """Rows of the fast path make good the decay that they missed: somebody looks at all of them."""
    if isinstance(step, SparseStep):
        step.catch_up()
