"""Contestants on a wide output layer, as jobs for a crew: ours by a strategy, PyTorch's by hand.

A turn trains for some seconds; P@1 is taken between turns, outside the clock. Ours is a session as
`mh.Trainer` would start it, with everything a run goes through: samples are gathered and prefetched
by the workers, pieces are claimed, the driver looks on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import manyhands as mh
from benchmarks.contestants.laps import Lap, Laps
from benchmarks.contestants.race import PartOfMnist
from benchmarks.contestants.wide_course import WideCourse, WideSet, batches, precision_at_1
from benchmarks.contestants.wide_softmax import FullSoftmax, SampledSoftmax, WideSoftmax
from benchmarks.harness.machine import cores
from manyhands.data.source import Source
from manyhands.replica.steps import LossStep
from manyhands.strategies.strategy import TrainingJob
from manyhands.telemetry.events import Event

FULL, SAMPLED = "full_softmax", "sampled_softmax"
LAPS = 1_000_000  # more than anyone will run
NEGATIVES = 2_000


class PeerTraining:
    """One of PyTorch's softmaxes, with a thread for every core."""

    def __init__(
        self, rank: int, size: int, name: str, course: WideCourse, samples: WideSet
    ) -> None:
        torch.set_num_threads(cores())
        torch.set_flush_denormal(True)
        self._course = course
        self._samples = samples
        self._peer = make_peer(name, course, samples)
        self._batches = self._endless()
        self._peer.step(*next(self._batches))  # the first step allocates

    def _endless(self) -> Iterator[tuple[Any, Any]]:
        source, course = self._samples.train, self._course
        for epoch in range(LAPS):
            for numbers in batches(source, course.batch, epoch=epoch, seed=course.seed):
                yield source.fetch(numbers, seed=0)

    def train(self, seconds: float) -> Lap:
        samples = 0
        began = now = time.monotonic()
        while now - began < seconds:
            self._peer.step(*next(self._batches))
            samples += self._course.batch
            now = time.monotonic()
        return Lap(samples, now - began)

    def precision(self) -> float:
        return precision_at_1(self._peer.parameters, self._samples.test)

    def close(self) -> None:
        """Nothing to end."""


def make_peer(name: str, course: WideCourse, samples: WideSet) -> WideSoftmax:
    parameters = list(course.model(samples).parameters())
    if name == FULL:
        return FullSoftmax(parameters, course.rate)
    return SampledSoftmax(parameters, course.rate, negatives=NEGATIVES, seed=course.seed)


class OurTraining:
    """A session of one of our strategies; the crew has one member, which is its driver.

    A turn is laps of `lap_samples`, which should take about as long as a turn.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        strategy: mh.Strategy,
        course: WideCourse,
        samples: WideSet,
        lap_samples: int,
    ) -> None:
        torch.set_num_threads(cores())
        torch.set_flush_denormal(True)
        self._test = samples.test
        self._job = job_of(course, samples, _unheard, lap_samples=lap_samples)
        self._laps = Laps(strategy, self._job)

    def train(self, seconds: float) -> Lap:
        samples, spent = 0, 0.0
        while spent < seconds:
            lap = self._laps.lap()
            samples += lap.images
            spent += lap.seconds
        return Lap(samples, spent)

    def precision(self) -> float:
        return precision_at_1(list(self._job.model.parameters()), self._test)

    def close(self) -> None:
        self._laps.close()


def job_of(
    course: WideCourse,
    samples: WideSet,
    emit: Callable[[Event], None],
    *,
    lap_samples: int | None = None,
) -> TrainingJob:
    """What a strategy is told. Epochs are laps, if there are: parts of the samples by chance.

    The first lap moves nothing, because it warms everything up.
    """
    source: Source = samples.train
    if lap_samples is not None and lap_samples < len(source):
        source = PartOfMnist(source, lap_samples)
    return TrainingJob(
        model=course.model(samples),
        step=LossStep(mh.sparse.LSHSoftmaxLoss()),
        rule=mh.optim.Adam(lr=course.rate),
        schedule=after_a_lap,
        source=source,
        sample=source.fetch(np.arange(2, dtype=np.int64), seed=0),
        batch_size=course.batch,
        epochs=LAPS,
        seed=course.seed,
        shuffle=True,
        ema=None,
        emit=emit,
    )


def _unheard(event: Event) -> None:
    """Nobody watches a race but its clock."""


def after_a_lap(step: int, total_steps: int) -> float:
    """A schedule: nothing in the first lap, then a constant rate."""
    return 0.0 if step * LAPS < total_steps else 1.0
