"""A run's curves as TensorBoard event files.

The horizontal axis is the number of samples seen, for every curve: runs with other batch sizes
and other strategies lie above each other. Records go through TensorBoard's own record writer to
a plain file: no TensorFlow, no torch.utils.tensorboard and, unlike with TensorBoard's file
writer, no thread, which a fork would copy and a full disk would leave hanging.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.telemetry.events import (
    ClusterProgress,
    EpochEnded,
    Event,
    Progress,
    RunStarted,
)

if TYPE_CHECKING:
    from tensorboard.summary.writer.record_writer import RecordWriter


class TensorBoardEvents:
    """Writes loss, learning rate, speed, the cluster's figures and validation metrics.

    The first figure opens the file.
    """

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._writer: RecordWriter | None = None
        self._samples_per_epoch = 0

    def handle(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._begin(event)
        elif isinstance(event, Progress):
            seen = event.epoch * event.samples_total + event.samples_done
            speed = event.samples_per_s
            self._scalars(
                seen,
                {"train/loss": event.loss, "train/lr": event.lr, "train/samples_per_s": speed},
            )
        elif isinstance(event, ClusterProgress):
            self._scalars(event.samples_seen, _cluster_scalars(event))
        elif isinstance(event, EpochEnded):
            seen = (event.epoch + 1) * (self._samples_per_epoch or event.samples)
            validation = {f"validation/{name}": value for name, value in event.metrics.items()}
            self._scalars(
                seen, {"epoch/loss": event.train_loss, "epoch/seconds": event.seconds, **validation}
            )

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _begin(self, event: RunStarted) -> None:
        self._samples_per_epoch = event.samples_per_epoch
        if event.first_epoch > 0:
            self._forget_from(event.first_epoch * event.samples_per_epoch + 1)

    def _forget_from(self, step: int) -> None:
        """Tell TensorBoard to drop what a killed run wrote after its last checkpoint."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self._write(step=step, session_log=SessionLog(status=SessionLog.START))

    def _scalars(self, step: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [
            Summary.Value(tag=tag, simple_value=float(value)) for tag, value in values.items()
        ]
        self._write(step=step, summary=Summary(value=scalars))

    def _write(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event as Record

        if self._writer is None:
            self._writer = _open_writer(self._folder)
            first = Record(wall_time=time.time(), file_version="brain.Event:2")
            self._writer.write(first.SerializeToString())
        self._writer.write(Record(wall_time=time.time(), **fields).SerializeToString())
        self._writer.flush()


def _cluster_scalars(event: ClusterProgress) -> dict[str, float]:
    speeds = {f"replicas/{r.replica}_samples_per_s": r.samples_per_s for r in event.replicas}
    loads = {f"server/{number}_load": load for number, load in enumerate(event.server_load)}
    return {
        **speeds,
        "staleness/mean": event.staleness_mean,
        "staleness/max": event.staleness_max,
        "traffic/pushed_bytes": event.pushed_bytes,
        "traffic/pulled_bytes": event.pulled_bytes,
        "traffic/pushed_bytes_per_s": event.pushed_bytes_per_s,
        "traffic/pulled_bytes_per_s": event.pulled_bytes_per_s,
        **loads,
        "server/held_up": event.held_up,
        "server/refused": event.refused,
    }


def _open_writer(folder: Path) -> RecordWriter:
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(parents=True, exist_ok=True)
    # TensorBoard reads a folder's files in the order of their names: nanoseconds keep a run
    # that is resumed within the second behind the one before.
    now = time.time_ns()
    name = f"events.out.tfevents.{now // 10**9:010d}.{now % 10**9:09d}"
    path = folder / f"{name}.{socket.gethostname()}.{os.getpid()}"
    return RecordWriter(path.open("xb"))
