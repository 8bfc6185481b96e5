"""Contestants that train MNIST in laps: a strategy of ours, or DDP on gloo, as jobs for a crew.

A lap is a short epoch: a part of the images, drawn at random. Between laps nobody trains, so the
accuracy is taken outside the clock, as often as a race to an accuracy needs it. A first lap at rate
zero warms everything up and moves nothing. A batch is that of all processes together.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

import manyhands as mh
from benchmarks.contestants.laps import Lap, Laps
from manyhands.data.source import Batch, Indices, Source
from manyhands.evaluation import evaluate
from manyhands.recipes import mnist
from manyhands.recipes.initialisation import kaiming_normal
from manyhands.replica.steps import LossStep
from manyhands.strategies.strategy import TrainingJob
from manyhands.telemetry.events import Event

LOSS = LossStep(nn.CrossEntropyLoss())
NEW_NETWORK = 0x40000000  # CLONE_NEWNET
LAPS = 1_000_000  # more than anyone will run
RISE_SHARE = 0.1  # of the cycle
LEAST_RATE = 0.01  # of the highest, once the cycle is over


@dataclass(frozen=True)
class Course:
    """What everyone trains in a race."""

    batch: int = 128  # of all processes together
    lap_images: int = 12_000
    cycle_images: int = 120_000
    lr: float = 0.05
    momentum: float = 0.9
    seed: int = 0

    def model(self) -> nn.Module:
        torch.manual_seed(self.seed)
        return kaiming_normal(mnist.network())

    @property
    def schedule(self) -> OneCycleAfterALap:
        return OneCycleAfterALap(self.cycle_images / self.lap_images)

    @property
    def rule(self) -> mh.optim.SGD:
        return mh.optim.SGD(lr=self.lr, momentum=self.momentum)


@dataclass(frozen=True)
class OneCycleAfterALap:
    """A schedule: nothing in the first lap, then one cycle, up and down along cosines.

    It begins at zero, because momentum has heard one gradient for a whole lap by then, and its end
    makes the accuracy climb steadily instead of jumping about the target. Counts in laps, since
    workers that share a batch out take more steps than those that don't.
    """

    cycle_laps: float

    def __call__(self, step: int, total_steps: int) -> float:
        laps = step * LAPS / total_steps - 1.0
        rise = RISE_SHARE * self.cycle_laps
        if laps < rise:
            return 0.5 - 0.5 * math.cos(math.pi * max(0.0, laps) / rise)
        fallen = min(1.0, (laps - rise) / (self.cycle_laps - rise))
        return max(LEAST_RATE, 0.5 + 0.5 * math.cos(math.pi * fallen))


class PartOfMnist(Source):
    """MNIST in epochs of a few images: each number stands for several, and chance picks one."""

    def __init__(self, whole: Source, images: int) -> None:
        self._whole = whole
        self._images = images
        self._choices = len(whole) // images

    def __len__(self) -> int:
        return self._images

    def fetch(self, indices: Indices, *, seed: int) -> Batch:
        chosen = np.random.default_rng(seed).integers(0, self._choices, len(indices))
        return self._whole.fetch(indices * self._choices + chosen, seed=seed)

    @property
    def sliceable(self) -> bool:
        return self._whole.sliceable

    def tensors(self) -> list[torch.Tensor]:
        return self._whole.tensors()

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> PartOfMnist:
        return PartOfMnist(self._whole.with_tensors(tensors), self._images)


def enter_namespace(name: str | None) -> None:
    """Have this thread, and those it starts from now on, use the network of a namespace."""
    if name is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{name}") as namespace:
        if libc.setns(namespace.fileno(), NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), f"namespace {name} can't be entered")


class StrategyRace:
    """A session of one of our strategies; the crew has one member, which is the driver."""

    def __init__(
        self, rank: int, size: int, strategy: mh.Strategy, course: Course, namespace: str | None
    ) -> None:
        enter_namespace(namespace)
        self._strategy = strategy
        self._course = course
        self._validation = mh.data.mnist("test")
        self._laps: Laps | None = None
        self.start(course.seed)

    def start(self, seed: int) -> None:
        """Begin anew, from the first weights of this seed."""
        self.close()
        course = replace(self._course, seed=seed)
        source = PartOfMnist(mh.data.mnist("train"), course.lap_images)
        self._job = TrainingJob(
            model=course.model(),
            step=LOSS,
            rule=course.rule,
            schedule=course.schedule,
            source=source,
            sample=source.fetch(np.arange(2, dtype=np.int64), seed=0),
            batch_size=course.batch,
            epochs=LAPS,
            seed=course.seed,
            shuffle=True,
            ema=None,
            emit=_unheard,
        )
        self._laps = Laps(self._strategy, self._job)

    def lap(self, slowed: str | None, share: float) -> Lap:
        assert self._laps is not None
        return self._laps.lap(slowed=slowed, share=share)

    def accuracy(self) -> float:
        found = evaluate(self._job.model, LOSS, self._validation, ["accuracy"], batch_size=128)
        return 100 * found["accuracy"]

    def close(self) -> None:
        if self._laps is not None:
            self._laps.close()
            self._laps = None


def _unheard(event: Event) -> None:
    """Nobody watches a race but its clock."""


class DdpRace:
    """One rank of DDP on gloo, with a thread of its own. The batch is shared out among the ranks.

    `namespaces` and `interfaces` put each rank on a network of its own.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        meeting_point: str,
        course: Course,
        namespaces: Sequence[str | None],
        interfaces: Sequence[str],
    ) -> None:
        enter_namespace(namespaces[rank])
        os.environ["GLOO_SOCKET_IFNAME"] = interfaces[rank]
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=size
        )
        self._rank, self._size = rank, size
        self._course = course
        self._source = PartOfMnist(mh.data.mnist("train"), course.lap_images)
        self._validation = mh.data.mnist("test")
        self.start(course.seed)

    def start(self, seed: int) -> None:
        self._course = course = replace(self._course, seed=seed)
        self._epoch = 0
        self._model = nn.parallel.DistributedDataParallel(course.model())
        self._optimizer = torch.optim.SGD(
            self._model.parameters(), lr=course.lr, momentum=course.momentum
        )
        self._next = self._batches()  # read before the clock runs, as a good loader would have
        self._step = 0
        self.lap()

    def _batches(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """This rank's batches of a lap, all read."""
        count, batch = self._course.lap_images // self._size, self._course.batch // self._size
        generator = np.random.default_rng([self._course.seed, self._epoch])
        order = generator.permutation(self._course.lap_images)[self._rank :: self._size][:count]
        seed = int(generator.integers(1 << 62))
        return [
            self._source.fetch(order[first : first + batch], seed=seed + self._rank + first)
            for first in range(0, count - batch + 1, batch)
        ]

    def lap(self) -> Lap:
        images, began = 0, time.monotonic()
        for x, y in self._next:
            self._optimizer.param_groups[0]["lr"] = self._rate()
            self._optimizer.zero_grad()
            nn.functional.cross_entropy(self._model(x), y).backward()
            self._optimizer.step()
            self._step += 1
            images += len(x)
        seconds = time.monotonic() - began
        self._epoch += 1
        self._next = self._batches()
        return Lap(images * self._size, seconds)

    def _rate(self) -> float:
        course = self._course
        return course.lr * course.schedule(self._step, LAPS * len(self._next))

    def accuracy(self) -> float:
        """The ranks have the same weights: only the first one looks."""
        if self._rank:
            return 0.0
        module = self._model.module
        found = evaluate(module, LOSS, self._validation, ["accuracy"], batch_size=128)
        return 100 * found["accuracy"]
