"""How long the rest of a run will take.

Once an epoch is over, the wall-clock time of the latest epochs counts, validation and checkpoint
included; in the first epoch, all there is to go by is the speed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from manyhands.telemetry.events import EpochEnded, Event, Progress, RunStarted

_LATEST_EPOCHS = 5


class TimeLeft:
    """Watches the stream and estimates. `seconds` is None as long as nothing is known."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds: float | None = None
        self._clock = clock
        self._epochs = 0
        self._epoch_began = clock()
        self._latest: deque[float] = deque(maxlen=_LATEST_EPOCHS)

    def watch(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._epochs = event.epochs
            self._epoch_began = self._clock()
        elif isinstance(event, Progress):
            self._estimate(event)
        elif isinstance(event, EpochEnded):
            now = self._clock()
            self._latest.append(now - self._epoch_began)
            self._epoch_began = now
            self.seconds = self._mean() * max(self._epochs - event.epoch - 1, 0)

    def _estimate(self, event: Progress) -> None:
        if self._latest:
            epoch_s = self._mean()
        elif event.samples_per_s > 0:
            epoch_s = event.samples_total / event.samples_per_s
        else:
            return
        share_left = 1 - event.samples_done / max(event.samples_total, 1)
        self.seconds = epoch_s * (max(self._epochs - event.epoch - 1, 0) + share_left)

    def _mean(self) -> float:
        return sum(self._latest) / len(self._latest)
