"""Contestants that train MNIST in laps: a strategy of ours, or DDP on gloo, as jobs for a crew.

A lap is a short epoch: a part of the images, drawn at random. Between laps nobody trains, so the
accuracy is taken outside the clock, as often as a race to an accuracy needs it. A first lap at rate
zero warms everything up and moves nothing.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import psutil
import torch
from torch import nn

import manyhands as mh
from manyhands.data.source import Batch, Indices, Source
from manyhands.evaluation import evaluate
from manyhands.recipes import mnist
from manyhands.recipes.initialisation import kaiming_normal
from manyhands.replica.steps import LossStep
from manyhands.strategies.strategy import TrainingJob
from manyhands.telemetry.events import ClusterProgress, Event

LOSS = LossStep(nn.CrossEntropyLoss())
NEW_NETWORK = 0x40000000  # CLONE_NEWNET
RISE_IMAGES = 3200


@dataclass(frozen=True)
class Course:
    """What everyone trains in a race."""

    batch: int = 64
    lap_images: int = 12_000
    lr: float = 0.02
    momentum: float = 0.9
    seed: int = 0

    def model(self) -> nn.Module:
        torch.manual_seed(self.seed)
        return kaiming_normal(mnist.network())

    def schedule(self, images_a_step: int) -> AfterFirstLap:
        """The rate's course for someone who sees so many images in a step."""
        return AfterFirstLap(
            -(-self.lap_images // images_a_step), max(1, RISE_IMAGES // images_a_step)
        )

    @property
    def rule(self) -> mh.optim.SGD:
        return mh.optim.SGD(lr=self.lr, momentum=self.momentum)


@dataclass(frozen=True)
class AfterFirstLap:
    """A schedule: nothing in the first lap, then a rise to the full rate over some images.

    Without the rise, momentum that has heard one gradient for a whole lap would throw the net.
    """

    lap_steps: int
    rise_steps: int

    def __call__(self, step: int, total_steps: int) -> float:
        return min(1.0, max(0, step - self.lap_steps) / self.rise_steps)


class Lap(NamedTuple):
    """One lap's images, all members of a crew together, and how long they took."""

    images: int
    seconds: float


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
    """Have this process, while it has one thread, use the network of a namespace."""
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
        self._course = course
        self._strategy = strategy
        self._validation = mh.data.mnist("test")
        self._travelled: ClusterProgress | None = None
        self._epoch = 0
        self.start()

    def start(self) -> None:
        """Begin anew, from the course's first weights."""
        self._epoch = 0
        course = self._course
        source = PartOfMnist(mh.data.mnist("train"), course.lap_images)
        self._job = TrainingJob(
            model=course.model(),
            step=LOSS,
            rule=course.rule,
            schedule=course.schedule(course.batch),
            source=source,
            sample=source.fetch(np.arange(2, dtype=np.int64), seed=0),
            batch_size=course.batch,
            epochs=1_000_000,
            seed=course.seed,
            shuffle=True,
            ema=None,
            emit=self._hear,
        )
        self._session = self._strategy.start(self._job)
        self.lap()

    def _hear(self, event: Event) -> None:
        if isinstance(event, ClusterProgress):
            self._travelled = event

    def lap(self) -> Lap:
        began = time.monotonic()
        summary = self._session.train_epoch(self._epoch)
        self._epoch += 1
        return Lap(summary.samples, time.monotonic() - began)

    def accuracy(self) -> float:
        found = evaluate(self._job.model, LOSS, self._validation, ["accuracy"], batch_size=128)
        return 100 * found["accuracy"]

    def roles(self) -> dict[str, list[int]]:
        """The processes of the session, by the name of the role that they belong to."""
        found: dict[str, list[int]] = {}
        for process in psutil.Process().children():
            command = process.cmdline()
            if len(command) > 3 and "role_process" in command[2]:
                family = [process, *process.children(recursive=True)]
                found[command[3]] = [member.pid for member in family]
        return found

    def pushed_bytes_per_image(self) -> float:
        if self._travelled is None or not self._travelled.samples_seen:
            return 0.0
        return self._travelled.pushed_bytes / self._travelled.samples_seen

    def close(self) -> None:
        self._session.close()


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
        self.start()

    def start(self) -> None:
        course = self._course
        self._epoch = 0
        self._model = nn.parallel.DistributedDataParallel(course.model())
        self._optimizer = torch.optim.SGD(
            self._model.parameters(), lr=course.lr, momentum=course.momentum
        )
        self._next = self._batches()  # read before the clock runs, as a good loader would have
        self._step, self._factor = 0, course.schedule(course.batch * self._size)
        self.lap()

    def _batches(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """This rank's batches of a lap, all read."""
        count, batch = self._course.lap_images // self._size, self._course.batch
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
            self._optimizer.param_groups[0]["lr"] = self._course.lr * self._factor(self._step, 0)
            self._optimizer.zero_grad()
            nn.functional.cross_entropy(self._model(x), y).backward()
            self._optimizer.step()
            self._step += 1
            images += len(x)
        seconds = time.monotonic() - began
        self._epoch += 1
        self._next = self._batches()
        return Lap(images * self._size, seconds)

    def accuracy(self) -> float:
        """The ranks have the same weights: only the first one looks."""
        if self._rank:
            return 0.0
        module = self._model.module
        found = evaluate(module, LOSS, self._validation, ["accuracy"], batch_size=128)
        return 100 * found["accuracy"]
