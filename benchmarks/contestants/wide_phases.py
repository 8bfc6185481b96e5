"""Where the time of the sparse fast path goes: its phases, the bytes and the operations."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import manyhands as mh
from benchmarks.contestants.wide_course import HIDDEN, WideCourse, WideSet, batches
from benchmarks.harness.machine import cores
from manyhands.replica.shared_weights import share
from manyhands.sparse.fast_path import describe
from manyhands.sparse.fast_trainer import FastTrainer, row_matrices

PIECE = 8  # batches in a native call
# What a person calls the phases, and the timers that they consist of.
PHASES = {
    "hashing": ("choose_s",),
    "forward": ("hidden_s", "logits_s", "loss_s"),
    "backward, update": ("gradient_s", "update_s", "hidden_update_s"),
}


@dataclass(frozen=True)
class Phases:
    """What a slice of training cost, by the trainer's own account."""

    samples: int
    seconds: float
    phase_s: dict[str, float]
    refresh_s: float  # beside training
    active: float  # rows of the output layer for a sample or a batch
    bytes_per_sample: float
    flops_per_sample: float

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds

    def shares(self) -> dict[str, float]:
        """Shares of the time; refreshing runs beside, so that it is not part of the sum."""
        shares = {name: seconds / self.seconds for name, seconds in self.phase_s.items()}
        return {
            **shares,
            "reading samples": 1.0 - sum(shares.values()),
            "refreshing, beside": self.refresh_s / self.seconds,
        }


class PhasedTraining:
    """The native trainer alone, in this process, with Adam's states; a job for a crew of one.

    Weights and states lie in memory as `mh.Hogwild` lays them.
    """

    def __init__(self, rank: int, size: int, course: WideCourse, samples: WideSet) -> None:
        torch.set_num_threads(cores())
        torch.set_flush_denormal(True)
        self._course = course
        self._source = samples.train
        self._model = course.model(samples)
        rule = mh.optim.Adam(lr=course.rate)
        sample = self._source.fetch(np.arange(2, dtype=np.int64), seed=0)
        path = describe(self._model, mh.sparse.LSHSoftmaxLoss(), rule, sample)
        by_rows = () if course.narrow else row_matrices(path, self._model)
        _, weights = share(self._model, rule, averaging=False, by_rows=by_rows)
        self._trainer = FastTrainer(
            path,
            self._model,
            rule,
            weights.states_of(0),
            max_batch=course.batch,
            threads=cores(),
            narrow=course.narrow,
        )
        self._step = 0
        self._pieces: list[Any] = []
        self._train_piece()

    def _train_piece(self) -> int:
        """One native call; the samples are gathered outside its timers."""
        if not self._pieces:
            size = self._course.batch * PIECE
            self._pieces = batches(self._source, size, epoch=self._step, seed=self._course.seed)
        x, y = self._source.fetch(self._pieces.pop(), seed=0)
        rates = np.full(PIECE, self._course.rate)
        self._trainer.train(x, y, self._course.batch, rates, self._step + 1)
        self._step += PIECE
        return len(x)

    def run(self, seconds: float) -> Phases:
        """Train for so long, and report what it cost."""
        before, refreshed = self._trainer.figures(), self._refresh_s()
        samples = 0
        began = now = time.monotonic()
        while now - began < seconds:
            samples += self._train_piece()
            now = time.monotonic()
        cost = {name: value - before[name] for name, value in self._trainer.figures().items()}
        sets = cost["samples"] if self._course.share == "sample" else cost["batches"]
        active = cost["active_rows"] / sets
        return Phases(
            samples=samples,
            seconds=now - began,
            phase_s={name: sum(cost[t] for t in timers) for name, timers in PHASES.items()},
            refresh_s=self._refresh_s() - refreshed,
            active=active,
            bytes_per_sample=cost["bytes"] / cost["samples"],
            # Forward, and backward to the weights and to the hidden layer: a product each.
            flops_per_sample=3 * 2 * HIDDEN * active,
        )

    def _refresh_s(self) -> float:
        """Seconds that refreshes took so far, beside training."""
        layer = self._model[2]
        assert isinstance(layer, mh.sparse.LSHLinear)
        refresher = layer._neurons._refresher
        return 0.0 if refresher is None else refresher.busy_s

    def close(self) -> None:
        """Wait for a refresh that is under way."""
        layer = self._model[2]
        assert isinstance(layer, mh.sparse.LSHLinear)
        layer.forget_tables()
