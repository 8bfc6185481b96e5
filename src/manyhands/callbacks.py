"""Callbacks: a user's code at the turns of a run; and early stopping, which is one of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from manyhands.errors import ConfigError


@dataclass(slots=True)
class RunView:
    """What a callback sees. `model` holds the weights that were validated (the average, if any).

    Setting `stop_reason` ends the run after the callbacks of this epoch.
    """

    model: nn.Module
    run_dir: Path
    epoch: int
    epochs: int
    record: Mapping[str, float]
    history: list[dict[str, float]]
    stop_reason: str | None = None


class Callback:
    """Override what you need. Called in the driver process; an exception ends the run."""

    def on_run_start(self, view: RunView) -> None:
        """Before the first epoch."""

    def on_epoch_end(self, view: RunView) -> None:
        """After each epoch is trained and validated, before its checkpoint is written."""

    def on_run_end(self, view: RunView) -> None:
        """After the last epoch, also when the run is stopped early."""


_LOWER_IS_BETTER = ("loss", "mse", "mae", "train_loss")


class EarlyStopping:
    """Ends a run when a validation figure has not improved for `patience` epochs.

    The best weights seen are kept on disk and handed back at the end, unless `restore_best` is off.
    """

    def __init__(
        self,
        metric: str = "accuracy",
        *,
        patience: int = 5,
        min_change: float = 0.0,
        mode: str | None = None,
        restore_best: bool = True,
    ) -> None:
        if patience < 1:
            raise ConfigError(f"EarlyStopping: patience is {patience!r}; expected at least 1.")
        if mode not in (None, "max", "min"):
            raise ConfigError(f"EarlyStopping: mode is {mode!r}; expected 'max', 'min' or None.")
        self.metric = metric
        self.patience = patience
        self.min_change = min_change
        self.restore_best = restore_best
        self._sign = -1.0 if (mode or self._usual_mode()) == "min" else 1.0
        self.reset()

    def reset(self) -> None:
        """Forget earlier runs."""
        self._best = -math.inf
        self._since = 0
        self.best_record: dict[str, float] | None = None

    def _usual_mode(self) -> str:
        return "min" if self.metric in _LOWER_IS_BETTER else "max"

    def check(self, known: Iterable[str]) -> None:
        """Raise ConfigError when the run will not report what is watched."""
        if self.metric not in known:
            raise ConfigError(
                f"EarlyStopping watches '{self.metric}', which this run doesn't report: choose one "
                f"of {', '.join(known)}, or pass validation data."
            )

    def improved(self, record: Mapping[str, float]) -> bool:
        """Note an epoch's figures; True when they are the best so far."""
        value = self._sign * record[self.metric]
        if value > self._best + self.min_change:
            self._best, self._since = value, 0
            self.best_record = dict(record)
            return True
        self._since += 1
        return False

    @property
    def exhausted(self) -> bool:
        """Whether the patience is used up."""
        return self._since >= self.patience

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"best": self.best_record, "since": self._since}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.reset()
        self.best_record = state.get("best")
        if self.best_record is not None:
            self._best = self._sign * self.best_record[self.metric]
        self._since = int(state.get("since", 0))
