"""Copies of the weights that the servers hold, and their moving average, beside the training.

A snapshot is pulled while replicas go on pushing, so its chunks are of slightly different moments:
that is what asynchronous training means by "the weights".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from manyhands import kernels
from manyhands.parameter_server.client.held_weights import HeldWeights
from manyhands.parameter_server.client.parameter_client import ParameterClient
from manyhands.replica.flat_weights import FlatLayout
from manyhands.strategies.strategy import EMA

_LEAST_PAUSE_S = 0.02
_PAUSE_PER_PULL = 10  # at most a tenth of the time goes into pulling for the average


class Snapshots:
    """What the driver asks of the servers. Thread-safe: one question at a time."""

    def __init__(self, client: ParameterClient, layout: FlatLayout) -> None:
        self._client = client
        self._layout = layout
        self._asking = threading.Lock()
        self._line = np.zeros(layout.floats, dtype=np.float32)
        self._held = HeldWeights(client.shard_map, self._line)

    def into(self, model: torch.nn.Module) -> None:
        """Copy the servers' weights into a model's trainable parameters."""
        with self._asking, torch.no_grad():
            self._client.fetch(self._held)
            parameters = dict(model.named_parameters())
            for name, view in self._layout.views(torch.from_numpy(self._line)).items():
                parameters[name].copy_(view)

    def average_into(self, averaged: npt.NDArray[np.float32], decay: float) -> None:
        """Move an average towards the servers' weights."""
        with self._asking:
            self._client.fetch(self._held)
            kernels.average([averaged], [self._line], decay)

    def states(
        self, count: int, updates: npt.NDArray[np.int64] | None = None
    ) -> list[npt.NDArray[np.float32]]:
        """The servers' first `count` states of their rule, each as a line.

        `updates` receives the updates that each chunk counts.
        """
        with self._asking:
            return self._client.get_states(count, updates)

    def set_states(
        self,
        lines: Sequence[npt.NDArray[np.float32]],
        updates: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Overwrite the states of the servers' rule, and the updates that each chunk counts."""
        with self._asking:
            self._client.set_states(lines, updates)


class MovingAverage(threading.Thread):
    """Averages the servers' weights over the steps of all replicas.

    Samples the weights as often as that costs little; the decay of a sample covers the steps since
    the one before, so the average forgets at the rate that was asked for.
    """

    def __init__(
        self,
        ema: EMA,
        snapshots: Snapshots,
        start: torch.Tensor,
        steps: Callable[[], int],
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name="average", daemon=True)
        self.line = start.clone()
        self._ema = ema
        self._snapshots = snapshots
        self._steps = steps
        self._fail = fail
        self._seen = steps()
        self._averaging = threading.Lock()
        self._closing = threading.Event()

    def run(self) -> None:
        pause_s = _LEAST_PAUSE_S
        try:
            while not self._closing.wait(pause_s):
                pause_s = max(_LEAST_PAUSE_S, _PAUSE_PER_PULL * self.catch_up())
        except Exception as error:  # the thread's main loop: the session decides
            self._fail(error)

    def catch_up(self) -> float:
        """Take the steps since the last sample into the average; the seconds it took."""
        began = time.monotonic()
        with self._averaging:
            steps = self._steps() - self._seen
            if steps >= self._ema.every:
                decay = self._ema.decay_over(self._seen, steps)
                self._snapshots.average_into(self.line.numpy(), decay)
                self._seen += steps
        return time.monotonic() - began

    def restart(self, line: torch.Tensor) -> None:
        """Go on from another average, at the steps taken by now."""
        with self._averaging:
            self.line.copy_(line)
            self._seen = self._steps()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        if self.is_alive():
            self.join()
