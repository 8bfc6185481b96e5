"""Events of an imaginary run, for the tests of those who read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from manyhands.telemetry.events import (
    ClusterProgress,
    EpochEnded,
    Progress,
    ReplicaSpeed,
    RunStarted,
)


def started(first_epoch: int = 0, epochs: int = 3) -> RunStarted:
    return RunStarted(
        run_dir=Path("/runs/net-1"),
        model="Net",
        parameters=431080,
        strategy="hogwild",
        workers=2,
        first_epoch=first_epoch,
        epochs=epochs,
        samples_per_epoch=1000,
    )


def progress(epoch: int, done: int, loss: float = 0.5) -> Progress:
    return Progress(
        epoch=epoch, samples_done=done, samples_total=1000, samples_per_s=100.0, loss=loss, lr=0.1
    )


def cluster(
    speeds: tuple[float, ...] = (8120.4, 7950.0),
    *,
    seen: int = 500,
    held_up: float = 0.0,
    refused: int = 0,
) -> ClusterProgress:
    return ClusterProgress(
        epoch=0,
        samples_seen=seen,
        replicas=tuple(
            ReplicaSpeed(replica=number, samples_per_s=speed) for number, speed in enumerate(speeds)
        ),
        staleness_mean=1.21,
        staleness_max=5,
        pushed_bytes=142_000_000,
        pulled_bytes=136_000_000,
        pushed_bytes_per_s=71.2e6,
        pulled_bytes_per_s=68.0e6,
        server_load=(0.12, 0.09),
        held_up=held_up,
        refused=refused,
    )


def epoch_ended(
    epoch: int, train_loss: float = 0.25, metrics: Mapping[str, float] | None = None
) -> EpochEnded:
    return EpochEnded(
        epoch=epoch,
        step=(epoch + 1) * 10,
        samples=1000,
        seconds=10.0,
        train_loss=train_loss,
        lr=0.1,
        metrics={"accuracy": 0.9871} if metrics is None else metrics,
    )
