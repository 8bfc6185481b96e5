"""A run in plain lines, for pipes, files and terminals that know no more."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from manyhands.telemetry import cluster_wording, incident_wording, wording
from manyhands.telemetry.events import (
    ClusterProgress,
    EpochEnded,
    Event,
    Note,
    Progress,
    RunEnded,
    RunStarted,
    WorkerLost,
)
from manyhands.telemetry.time_left import TimeLeft


class PlainLines:
    """Writes a line per epoch, note and lost worker, and one when `quiet_s` passed without any.

    Where replicas train, the latest figures of the cluster end the lines about training.
    """

    def __init__(
        self, stream: TextIO, *, quiet_s: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._quiet_s = quiet_s
        self._clock = clock
        self._last_line = clock()
        self._time_left = TimeLeft(clock)
        self._epochs = 0
        self._sample_name = "samples"
        self._cluster: ClusterProgress | None = None

    def handle(self, event: Event) -> None:
        self._time_left.watch(event)
        if isinstance(event, RunStarted):
            self._epochs, self._sample_name = event.epochs, event.sample_name
            self._line(wording.start(event))
        elif isinstance(event, Progress):
            if self._clock() - self._last_line >= self._quiet_s:
                self._line(self._under_way(event))
        elif isinstance(event, ClusterProgress):
            self._cluster = event
        elif isinstance(event, EpochEnded):
            fields = wording.epoch_fields(event, self._epochs, self._sample_name)
            self._line("  ".join([*fields, *self._left(), *self._replicas()]))
        elif isinstance(event, Note):
            self._line(f"warning: {event.message}" if event.warning else event.message)
        elif isinstance(event, WorkerLost):
            self._line(f"warning: {wording.worker_lost(event)}")
        elif incident := incident_wording.line(event):
            self._line(f"warning: {incident.text}" if incident.warning else incident.text)
        elif isinstance(event, RunEnded):
            self._line(wording.end(event))

    def close(self) -> None:
        """Leave the stream open: it belongs to the caller."""

    def _under_way(self, event: Progress) -> str:
        done = event.samples_done / max(event.samples_total, 1)
        fields = [
            f"{wording.epoch_title(event.epoch, self._epochs)}  {done:4.0%}",
            wording.loss(event.loss),
            wording.speed(event.samples_per_s, self._sample_name),
        ]
        return "  ".join([*fields, *self._left(), *self._replicas()])

    def _left(self) -> list[str]:
        seconds = self._time_left.seconds
        return [f"{wording.duration(seconds)} left"] if seconds else []

    def _replicas(self) -> list[str]:
        if self._cluster is None:
            return []
        return [cluster_wording.line(self._cluster, self._sample_name)]

    def _line(self, text: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        known = wording.harmless(text).encode(encoding, "replace").decode(encoding)
        self._stream.write(f"{known}\n")
        self._stream.flush()
        self._last_line = self._clock()
