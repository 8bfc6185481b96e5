"""Four ways to train on one machine with PyTorch alone, each as a job for a crew.

Each is as good as its form allows: batches are views of a tensor in memory, denormals are flushed,
no process has more threads than its share of the cores, and a warm-up comes before the first
slice. A batch is what one process sees at a time, in every form.
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.contestants.nets import LR, MOMENTUM, build

WARM_UP_STEPS = 3


class Slice(NamedTuple):
    """What one process did: on a clock that all processes of a machine share."""

    images: int
    began_s: float
    ended_s: float


def images_per_second(slices: list[Slice]) -> float:
    """A crew's rate from its first member's start to its last member's end."""
    elapsed_s = max(s.ended_s for s in slices) - min(s.began_s for s in slices)
    return sum(s.images for s in slices) / elapsed_s


class PlainTraining:
    """The training loop of every tutorial, with a number of threads."""

    def __init__(
        self, rank: int, size: int, x: torch.Tensor, y: torch.Tensor, threads: int
    ) -> None:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(True)
        self._x, self._y = x, y
        # Members begin at different images, as shuffled ones would.
        self._next = rank * (len(x) // size)
        self._batch = 1

    def configure(self, net: str, batch: int) -> None:
        """Build what the next slices train and warm it up."""
        self._prepare(build(net), batch)

    def _prepare(self, model: nn.Module, batch: int, **optimizer_options: Any) -> None:
        self._model = model
        self._batch = batch
        self._loss = nn.CrossEntropyLoss()
        self._optimizer = torch.optim.SGD(
            model.parameters(), lr=LR, momentum=MOMENTUM, **optimizer_options
        )
        for _ in range(WARM_UP_STEPS):
            self._step()

    def _step(self) -> None:
        x, y = self._take()
        self._optimizer.zero_grad()
        self._loss(self._model(x), y).backward()
        self._optimizer.step()

    def _take(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self._next + self._batch > len(self._x):
            self._next = 0
        here = slice(self._next, self._next + self._batch)
        self._next = here.stop
        return self._x[here], self._y[here]

    def run(self, seconds: float) -> Slice:
        """Train until the time is over."""
        began = now = time.monotonic()
        steps = 0
        while now - began < seconds:
            self._step()
            steps += 1
            now = time.monotonic()
        return Slice(steps * self._batch, began, now)


class SharedMemoryHogwild(PlainTraining):
    """PyTorch's Hogwild example: `model.share_memory()`, and an optimizer in each process."""

    def configure(self, model: nn.Module, batch: int) -> None:  # type: ignore[override]
        """`model` arrives through the pipe as handles of shared memory, not as a copy."""
        self._prepare(model, batch)


class TunedHogwild(PlainTraining):
    """The same, by someone who knows PyTorch well: channels-last convolutions, fused SGD."""

    def configure(self, model: nn.Module, batch: int) -> None:  # type: ignore[override]
        self._prepare(model, batch, fused=True)

    def _take(self) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = super()._take()
        return x.contiguous(memory_format=torch.channels_last), y


def share(net: str, *, channels_last: bool = False) -> nn.Module:
    """A model whose weights lie in shared memory."""
    model = build(net)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model.share_memory()


class DistributedDataParallel(PlainTraining):
    """DDP on gloo, one thread in each process.

    The members agree on the last step of a slice without a message of its own: the first writes
    the number of the last step before it begins that step, and nobody can end a step that the first
    has not begun, since the gradients are averaged inside it. Whoever starts a slice clears the
    number first.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        x: torch.Tensor,
        y: torch.Tensor,
        meeting_point: str,
        last_step: torch.Tensor,
    ) -> None:
        super().__init__(rank, size, x, y, threads=1)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=size
        )
        self._rank = rank
        self._last_step = last_step

    def configure(self, net: str, batch: int) -> None:
        self._prepare(nn.parallel.DistributedDataParallel(build(net)), batch)

    def run(self, seconds: float) -> Slice:
        began = now = time.monotonic()
        step = 0
        while self._last_step.item() < 0 or step <= self._last_step.item():
            if self._rank == 0 and self._last_step.item() < 0 and now - began >= seconds:
                self._last_step.fill_(step)
            self._step()
            step += 1
            now = time.monotonic()
        return Slice(step * self._batch, began, now)
