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

from manyhands import kernels
from manyhands.data.prefetch import Prefetcher
from manyhands.data.source import epoch_order
from manyhands.errors import ModelError
from manyhands.replica.arena import Arena
from manyhands.replica.pool import WorkerPool
from manyhands.replica.shared_weights import (
    refuse_what_cannot_be_shared,
    share,
    trainable,
    unshare,
)
from manyhands.replica.steps import flat, native_rule
from manyhands.replica.worker_process import Ready
from manyhands.strategies.divergence import diverged
from manyhands.strategies.lockstep import BatchRequest, EpochAccount, batch_requests
from manyhands.strategies.strategy import EpochSummary, Session, TrainingJob, load_shared
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
        torch.manual_seed(self.job.seed * 1000 + self.number)
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
        mine = share_of(len(request.indices), self.workers, self.number)
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
    small, larger = divmod(samples, workers)
    start = number * small + min(number, larger)
    return slice(start, start + small + (1 if number < larger else 0))


class SharedBatchSession(Session):
    """The driver's side: hands out batches, adds gradients, applies the rule."""

    def __init__(self, job: TrainingJob, workers: int) -> None:
        refuse_what_cannot_be_shared(job.model)
        _refuse_sparse(job)
        self._job = job
        self._workers = workers
        self._rule = native_rule(job.rule)
        self._weight_arena, self._weights = share(
            job.model, job.rule, averaging=job.ema is not None
        )
        self._work_arena, self._worker_job, self._gradients = self._place_work()
        arenas = [self._weight_arena, self._work_arena]
        self._pool = WorkerPool(self._task, workers=workers, arenas=arenas)
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
        scale = self._clipping(gradients)
        kernels.update(self._rule, rate, step + 1, scale, weights, gradients, states)
        ema = self._job.ema
        if ema is not None and (step + 1) % ema.every == 0:
            averaged = [flat(self._weights.averaged[name]) for name in first]
            kernels.average(averaged, weights, ema.decay_over(step, ema.every))

    def _clipping(self, gradients: list[torch.Tensor]) -> float:
        limit = self._job.rule.clip_norm
        if limit is None:
            return 1.0
        return min(1.0, limit / (math.sqrt(kernels.squared_norm(gradients)) + 1e-6))

    def _indices(self, epoch: int, batch: int) -> list[int]:
        job, size = self._job, self._job.batch_size
        order = epoch_order(len(job.source), epoch=epoch, seed=job.seed, shuffle=job.shuffle)
        return [int(index) for index in order[batch * size : (batch + 1) * size]]

    def averaged(self) -> dict[str, torch.Tensor] | None:
        return dict(self._weights.averaged) if self._job.ema else None

    def optimizer_state(self) -> dict[str, torch.Tensor]:
        return self._weights.named_states(self._job.rule)

    def load(
        self,
        optimizer: dict[str, torch.Tensor],
        averaged: dict[str, torch.Tensor] | None,
        step: int,
    ) -> None:
        del step  # a step's number follows from its batch's
        load_shared(self._weights, self._job, optimizer, averaged)

    def close(self) -> None:
        try:
            self._pool.close()
        finally:
            unshare(self._job.model)
            self._weight_arena.close()
            self._work_arena.close()

    def _place_work(self) -> tuple[Arena, TrainingJob, list[dict[str, torch.Tensor]]]:
        job = self._job
        data = job.source.tensors()
        parameters = self._weights.parameters
        arena = Arena.with_room_for([*data, *(list(parameters.values()) * self._workers)])
        source = job.source.with_tensors([arena.place(tensor) for tensor in data])
        gradients = [
            {name: arena.place(p) for name, p in parameters.items()} for _ in range(self._workers)
        ]
        return arena, job.for_workers(source), gradients

    def _task(self, number: int) -> SharedBatchWorker:
        return SharedBatchWorker(
            number=number,
            workers=self._workers,
            job=self._worker_job,
            gradients=self._gradients[number],
        )


def _refuse_sparse(job: TrainingJob) -> None:
    for name, module in job.model.named_modules():
        if getattr(module, "sparse", False):
            raise ModelError(
                f"'{name}' has sparse gradients, which Synchronous can't add up among several "
                "workers: use workers=1, Hogwild or sparse=False."
            )
