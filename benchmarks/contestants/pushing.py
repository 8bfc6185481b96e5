"""Downpour as a contestant whose pushes are weighed: images/s and bytes per image."""

from __future__ import annotations

from types import TracebackType

import numpy as np
import torch
from torch import nn

import manyhands as mh
from benchmarks.contestants.laps import Lap, Laps
from benchmarks.contestants.nets import build
from benchmarks.harness.crew import Crew
from benchmarks.harness.rounds import Measure
from manyhands.data.datasets.mnist import MEAN, STD
from manyhands.data.source import Source
from manyhands.replica.steps import LossStep
from manyhands.strategies.strategy import TrainingJob
from manyhands.telemetry.events import ClusterProgress, Event

LR = 1e-4  # speed does not depend on it
LAP_S = 60.0


class PushingSession:
    """A Downpour session on one net: a job for a crew of one, which is its driver."""

    def __init__(
        self, rank: int, size: int, net: str, batch: int, images: int, strategy: mh.Downpour
    ) -> None:
        self._heard: list[ClusterProgress] = []
        source = _source(net, images)
        job = TrainingJob(
            model=build(net),
            step=LossStep(nn.CrossEntropyLoss()),
            rule=mh.optim.SGD(lr=LR),
            schedule=mh.optim.Constant(),
            source=source,
            sample=source.fetch(np.arange(2, dtype=np.int64), seed=0),
            batch_size=batch,
            epochs=1_000_000,
            seed=0,
            shuffle=True,
            ema=None,
            emit=self._hear,
        )
        self._laps = Laps(strategy, job)

    def _hear(self, event: Event) -> None:
        if isinstance(event, ClusterProgress):
            self._heard.append(event)

    def train(self, seconds: float) -> Lap:
        """Laps that last so long together."""
        images, spent = 0, 0.0
        while spent < seconds:
            lap = self._laps.lap()
            images += lap.images
            spent += lap.seconds
        return Lap(images, spent)

    def bytes_per_image(self) -> float:
        """What was pushed for an image, over all that has been trained."""
        last = self._heard[-1]
        return last.pushed_bytes / last.samples_seen

    def close(self) -> None:
        self._laps.close()


class Pushing:
    """The session in a process of its own, standing still unless measured. A context manager."""

    def __init__(self, net: str, batch: int, images: int, strategy: mh.Downpour) -> None:
        self._crew = Crew("pushing", PushingSession, 1, net, batch, images, strategy)

    def __enter__(self) -> Pushing:
        self._crew.start()
        try:
            self._crew.answers(expected_s=LAP_S)
        except BaseException:
            self._crew.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._crew.tell("close")
            self._crew.answers()
        self._crew.close()

    def measure(self, seconds: float) -> Measure:
        """One turn, in images/s."""

        def turn() -> float:
            self._crew.tell("train", seconds)
            lap: Lap = self._crew.answers(expected_s=seconds + LAP_S)[0]
            return lap.images / lap.seconds

        return turn

    def bytes_per_image(self) -> float:
        self._crew.tell("bytes_per_image")
        return float(self._crew.answers()[0])


def _source(net: str, images: int) -> Source:
    """MNIST, or for the net that wants colours, noise of CIFAR's shape."""
    if net == "alexnet":
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randint(0, 256, (images, 3, 32, 32), generator=generator, dtype=torch.uint8)
        classes = torch.randint(0, 10, (images,), generator=generator)
        return mh.data.arrays(pixels, classes, layout="NCHW", mean=0.5, std=0.25)
    pixels, classes = (tensor[:images] for tensor in mh.data.mnist("train").tensors())
    return mh.data.arrays(pixels, classes, layout="NCHW", mean=MEAN, std=STD)
