"""Synchronous training on several processes: every batch is shared out, every gradient added up.

How a step goes:

    driver                                    each worker process
    ------                                    -------------------
 1  Go(batch)                         ---->
 2                                            gradient of its share, into its own shared buffer
 3                                    <----   ShareDone
 4  adds the buffers in a fixed order,
    applies the rule once

The driver alone writes weights, so a worker that dies can be replaced and its share computed again:
the result of the step is the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import nn

from manyhands import kernels
from manyhands.data.prefetch import Prefetcher
from manyhands.data.source import epoch_order
from manyhands.errors import ModelError
from manyhands.launch.role_process import Ready
from manyhands.optim.clipping import clipping
from manyhands.optim.native import native_rule
from manyhands.replica.shared_weights import refuse_what_cannot_be_shared, trainable
from manyhands.replica.steps import flat
from manyhands.strategies.divergence import diverged
from manyhands.strategies.lockstep import BatchRequest, EpochAccount, batch_requests
from manyhands.strategies.shared_session import SharedSession
from manyhands.strategies.strategy import EpochSummary, TrainingJob
from manyhands.telemetry.events import Note

_LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class EpochStart:
    """To a worker: get ready for this epoch's batches, from this one on."""

    epoch: int
    first_batch: int


@dataclass(frozen=True, slots=True)
class Go:
    """To a worker: compute your share of the next batch."""


@dataclass(frozen=True, slots=True)
class ShareDone:
    """From a worker: its gradient lies in its buffer; its mean loss and number of samples."""

    loss: float
    samples: int


@dataclass(frozen=True, slots=True)
class SharedBatchWorker:
    """What a worker process runs."""

    number: int
    workers: int
    job: TrainingJob
    gradients: dict[str, torch.Tensor]

    def run(self, channel: Connection) -> None:
        torch.manual_seed(self.job.worker_seed(self.number))
        if self.number > 0:  # BatchNorm statistics follow worker 0's shares, as in DDP
            for buffer in self.job.model.buffers():
                buffer.data = buffer.detach().clone()
        channel.send(Ready())
        while True:
            self._train_epoch(channel, channel.recv())

    def _train_epoch(self, channel: Connection, start: EpochStart) -> None:
        shares = [self._share(r) for r in batch_requests(self.job, start.epoch, start.first_batch)]
        wanted = (share for share in shares if len(share.indices))
        with Prefetcher(self.job.source, wanted, depth=2) as fetched:
            ready = iter(fetched)
            for request in shares:
                channel.recv()
                batch = next(ready)[1] if len(request.indices) else None
                channel.send(self._compute(request, batch))

    def _share(self, request: BatchRequest) -> BatchRequest:
        samples = len(request.indices)
        # BatchNorm can't normalise a single sample: a short batch goes to fewer workers.
        workers = (
            min(self.workers, max(1, samples // 2)) if self.job.has_batch_norm else self.workers
        )
        mine = share_of(samples, workers, self.number)
        return BatchRequest(request.indices[mine], request.seed + self.number, request.batch)

    def _compute(self, request: BatchRequest, batch: Any) -> ShareDone:
        samples = len(request.indices)
        loss = 0.0
        if samples:
            value = self.job.step(self.job.model, batch)
            value.backward()  # type: ignore[no-untyped-call]
            loss = float(value.detach())
        weight = samples / self._batch_samples(request.batch)
        for name, parameter in trainable(self.job.model).items():
            if parameter.grad is None:
                self.gradients[name].zero_()
            else:
                torch.mul(parameter.grad, weight, out=self.gradients[name])
            parameter.grad = None
        return ShareDone(loss, samples)

    def _batch_samples(self, batch: int) -> int:
        return min(self.job.batch_size, self.job.samples_per_epoch - batch * self.job.batch_size)


def share_of(samples: int, workers: int, number: int) -> slice:
    """The part of a batch that a worker takes: parts differ by one sample at most, and the last
    ones are empty when there are fewer samples than workers."""
    if number >= workers:
        return slice(0, 0)
    small, larger = divmod(samples, workers)
    start = number * small + min(number, larger)
    return slice(start, start + small + (1 if number < larger else 0))


class SharedBatchSession(SharedSession):
    """The driver's side: hands out batches, adds gradients, applies the rule."""

    def __init__(self, job: TrainingJob, workers: int) -> None:
        super().__init__(job, workers)
        self._rule = native_rule(job.rule)
        self._worker_job, self._gradients = self._place_work()
        job.emit(Note(message=f"Synchronous: every batch shared among {workers} workers"))

    def train_epoch(self, epoch: int) -> EpochSummary:
        if not self._pool.pids:
            self._pool.start()
        job, account, rate = self._job, EpochAccount(self._job, epoch), 0.0
        self._pool.broadcast(EpochStart(epoch, 0))
        for batch in range(job.batches_per_epoch):
            step = epoch * job.batches_per_epoch + batch
            rate = float(job.rates(step, 1)[0])
            shares = self._compute(epoch, batch)
            samples = sum(done.samples for done in shares)
            loss = sum(done.loss * done.samples for done in shares) / samples
            if not math.isfinite(loss):
                raise diverged(epoch, batch, step, loss, self._indices(epoch, batch))
            self._apply(rate, step)
            account.count(samples, loss, rate)
        return account.summary(rate)

    def _compute(self, epoch: int, batch: int) -> list[ShareDone]:
        self._pool.broadcast(Go())
        done: dict[int, ShareDone] = {}
        while len(done) < self._workers:
            for number, message in self._pool.receive(_LOOK_EVERY_S):
                if isinstance(message, ShareDone):
                    done[number] = message
                else:
                    done.pop(number, None)
                    self._revive(number, epoch, batch)
        return list(done.values())

    def _revive(self, number: int, epoch: int, batch: int) -> None:
        lost = self._pool.replace(number)
        self._pool.send(number, EpochStart(epoch, batch))
        self._pool.send(number, Go())
        self._job.emit(lost)

    def _apply(self, rate: float, step: int) -> None:
        first, *others = self._gradients
        for name, total in first.items():
            for other in others:  # numpy: PyTorch would wake threads that the workers need
                np.add(total.numpy(), other[name].numpy(), out=total.numpy())
        gradients = [flat(g) for g in first.values()]
        weights = [flat(self._weights.parameters[name]) for name in first]
        states = [[flat(s) for s in self._weights.states_of(0)[name]] for name in first]
        scale = clipping(self._job.rule, gradients)
        kernels.update(self._rule, rate, step + 1, scale, weights, gradients, states)
        ema = self._job.ema
        if ema is not None and (step + 1) % ema.every == 0:
            averaged = [flat(self._weights.averaged[name]) for name in first]
            kernels.average(averaged, weights, ema.decay_over(step, ema.every))

    def _indices(self, epoch: int, batch: int) -> list[int]:
        job, size = self._job, self._job.batch_size
        order = epoch_order(len(job.source), epoch=epoch, seed=job.seed, shuffle=job.shuffle)
        return [int(index) for index in order[batch * size : (batch + 1) * size]]

    def _place_work(self) -> tuple[TrainingJob, list[dict[str, torch.Tensor]]]:
        job, parameters = self._job, self._weights.parameters
        data = job.source.tensors()
        placed = self._place([*data, *(list(parameters.values()) * self._workers)])
        source = job.source.with_tensors(placed[: len(data)])
        rest = iter(placed[len(data) :])
        gradients = [{name: next(rest) for name in parameters} for _ in range(self._workers)]
        return job.for_workers(source), gradients

    def _task(self, number: int) -> SharedBatchWorker:
        return SharedBatchWorker(
            number=number,
            workers=self._workers,
            job=self._worker_job,
            gradients=self._gradients[number],
        )


def refuse_what_cannot_be_added_up(model: nn.Module) -> None:
    """Raise ModelError for models whose gradients several processes can't add up."""
    refuse_what_cannot_be_shared(model)
    for name, module in model.named_modules():
        if getattr(module, "sparse", False):
            raise ModelError(
                f"'{name}' has sparse gradients, which Synchronous can't add up among several "
                "workers: use workers=1 or Hogwild (or sparse=False in an embedding)."
            )
