"""The forms that a Hogwild worker could take, as jobs for a crew.

A form is two choices: the workers are processes or threads, and a step is PyTorch throughout,
PyTorch with our fused update, or our native plan. The workers share the weights in every form, and
the momentum in ours; an optimizer of PyTorch keeps its own.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from benchmarks.contestants.nets import LR, MOMENTUM
from benchmarks.contestants.torch_training import WARM_UP_STEPS, Slice
from manyhands.optim import SGD
from manyhands.replica import plan as native_plan
from manyhands.replica.steps import AutogradStep, LossStep, PlanStep, Step

STEPS = ("torch", "fused", "plan")
BATCHES_PER_CALL = 8  # a piece's worth: a worker is never handed one batch at a time
RULE = SGD(lr=LR, momentum=MOMENTUM)


class TorchStep:
    """Autograd and an optimizer of the worker's own."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._loss = nn.CrossEntropyLoss()
        self._optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)

    def train(
        self, batches: tuple[torch.Tensor, torch.Tensor], batch_size: int, *_: object
    ) -> None:
        for x, y in zip(*(tensor.split(batch_size) for tensor in batches), strict=True):
            self._optimizer.zero_grad()
            self._loss(self._model(x), y).backward()
            self._optimizer.step()


def momentum_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Fresh optimizer state in shared memory."""
    return {n: torch.zeros_like(p).share_memory_() for n, p in model.named_parameters()}


def _own_view(model: nn.Module) -> nn.Module:
    """The same weights with gradients of one's own: threads would mix theirs otherwise."""
    mine = copy.deepcopy(model)
    for parameter, shared in zip(mine.parameters(), model.parameters(), strict=True):
        parameter.data = shared.data
    return mine


def make_step(
    kind: str, model: nn.Module, momentum: dict[str, torch.Tensor], x: torch.Tensor, batch: int
) -> Step | TorchStep:
    """One worker's step over the shared weights."""
    mine = _own_view(model)
    if kind == "torch":
        return TorchStep(mine)
    states = {name: [state] for name, state in momentum.items()}
    step = LossStep(nn.CrossEntropyLoss())
    if kind == "fused":
        return AutogradStep(mine, step, RULE, states)
    example = x[:2], torch.zeros(2, dtype=torch.int64)
    description = native_plan.describe(mine, step, example)
    return PlanStep(native_plan.build(description, mine, RULE, states, max_batch=batch, seed=0))


class FormTraining:
    """A process with one or more worker threads, each with a step of its own."""

    def __init__(
        self, rank: int, size: int, x: torch.Tensor, y: torch.Tensor, threads: int, kind: str
    ) -> None:
        torch.set_num_threads(1)
        self._x, self._y = x, y
        self._threads = threads
        self._kind = kind
        workers = size * threads
        self._next = [(rank * threads + n) * (len(x) // workers) for n in range(threads)]

    def configure(self, model: nn.Module, momentum: dict[str, torch.Tensor], batch: int) -> None:
        self._batch = batch
        self._steps = [
            make_step(self._kind, model, momentum, self._x, batch) for _ in range(self._threads)
        ]
        self._in_threads(lambda worker: self._train(worker, calls=WARM_UP_STEPS))

    def run(self, seconds: float) -> Slice:
        """Train until the time is over, on every thread."""
        images = [0] * self._threads
        began = time.monotonic()

        def work(worker: int) -> None:
            while time.monotonic() - began < seconds:
                images[worker] += self._train(worker, calls=1)

        self._in_threads(work)
        return Slice(sum(images), began, time.monotonic())

    def _in_threads(self, work: Callable[[int], object]) -> None:
        def flushing(worker: int) -> None:
            torch.set_flush_denormal(True)  # holds for the thread that calls it
            work(worker)

        threads = [threading.Thread(target=flushing, args=(n,)) for n in range(self._threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _train(self, worker: int, *, calls: int) -> int:
        count = BATCHES_PER_CALL * self._batch
        for _ in range(calls):
            first = self._next[worker] if self._next[worker] + count <= len(self._x) else 0
            self._next[worker] = first + count
            here = slice(first, first + count)
            rates = np.full(BATCHES_PER_CALL, LR)
            self._steps[worker].train((self._x[here], self._y[here]), self._batch, rates, 1)
        return calls * count
