"""A training step through the fast path of sparse layers (`manyhands.sparse.fast_trainer`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from manyhands.replica.steps import Rates, RowsTaker, cut
from manyhands.sparse.fast_trainer import FastTrainer


class SparseStep:
    """Whole pieces of batches in one native call.

    `take_rows` is given the gradients of all rows, batch after batch; the rows then take a plain
    step, because whoever takes them also applies the rule.
    """

    def __init__(self, trainer: FastTrainer, *, take_rows: RowsTaker | None = None) -> None:
        self._trainer = trainer
        self._take_rows = take_rows

    def catch_up(self) -> None:
        """Let rows make good the weight decay that they missed."""
        self._trainer.catch_up()

    def train(self, batches: Any, batch_size: int, rates: Rates, first_step: int) -> Rates:
        if self._take_rows is None:
            inputs, targets = batches
            return self._trainer.train(inputs, targets, batch_size, rates, first_step)
        losses: list[float] = []
        for number, (inputs, targets) in enumerate(cut(batches, batch_size, len(rates))):
            rate = rates[number : number + 1]
            loss = self._trainer.train(inputs, targets, batch_size, rate, first_step + number)
            losses.append(float(loss[0]))
            if not math.isfinite(losses[-1]):
                break
            for found in self._trainer.collected():
                self._take_rows(found.name, found.rows, found.values)
        return np.array(losses)
