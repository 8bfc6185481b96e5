"""Manyhands as a contestant: a Hogwild session, measured epoch by epoch.

Everything that a user's run goes through is in the figure: pixels are gathered, normalised and
prefetched by the workers, pieces are claimed, losses are counted, the driver looks on. An epoch is
cut to about one slice of time, and a slice is as many epochs as fill it.
"""

from __future__ import annotations

import time
from functools import cache
from types import TracebackType

import numpy as np
import torch
from torch import nn

import manyhands as mh
from benchmarks.contestants.nets import LR, MOMENTUM, build
from benchmarks.harness.rounds import Measure
from manyhands.data.datasets.mnist import MEAN, STD
from manyhands.replica.steps import LossStep
from manyhands.strategies.strategy import Session, TrainingJob

# What a worker claims at a time. An epoch holds as many for each worker, so that all end together,
# and several, because the first of an epoch is fetched while nobody computes.
PIECE = 256


class Ours:
    """A session of `mh.Hogwild(workers)` on one net and batch size; idle unless measured.

    A context manager: entering starts the workers and trains one epoch, which is not counted.
    """

    def __init__(
        self, net: str, batch: int, *, workers: int, images_per_epoch: float, least_pieces: int
    ) -> None:
        self._workers = workers
        unit = max(PIECE, batch) * workers
        self._job = _job(net, batch, whole_pieces(images_per_epoch, unit, least=least_pieces))
        self._epoch = 0

    def __enter__(self) -> Ours:
        self._session: Session = mh.Hogwild(
            workers=self._workers,
            share_batch=False,  # a batch for each worker, as the peers have
        ).start(self._job)
        try:
            self._train_epoch()
        except BaseException:
            self._session.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session.close()

    def _train_epoch(self) -> int:
        summary = self._session.train_epoch(self._epoch)
        self._epoch += 1
        return summary.samples

    def measure(self, seconds: float) -> Measure:
        """One turn, in images/s."""

        def turn() -> float:
            images = 0
            began = now = time.monotonic()
            while now - began < seconds:
                images += self._train_epoch()
                now = time.monotonic()
            return images / (now - began)

        return turn


@cache
def _mnist() -> list[torch.Tensor]:
    """Pixels and classes, unpacked once."""
    return mh.data.mnist("train").tensors()


def whole_pieces(images: float, unit: int, *, least: int) -> int:
    """About this many images, as a multiple of `unit` that MNIST can fill."""
    available = len(_mnist()[0]) // unit
    return unit * min(max(least, round(images / unit)), available)


def _job(net: str, batch: int, images: int) -> TrainingJob:
    pixels, classes = (tensor[:images] for tensor in _mnist())
    source = mh.data.arrays(pixels, classes, layout="NCHW", mean=MEAN, std=STD)
    return TrainingJob(
        model=build(net),
        step=LossStep(nn.CrossEntropyLoss()),
        rule=mh.optim.SGD(lr=LR, momentum=MOMENTUM),
        schedule=mh.optim.Constant(),
        source=source,
        sample=source.fetch(np.arange(2, dtype=np.int64), seed=0),
        batch_size=batch,
        epochs=1_000_000,
        seed=0,
        shuffle=True,
        ema=None,
        emit=lambda event: None,
    )
