"""The event stream of a run: what happened, as plain data.

The trainer emits these; the progress display, the event log, TensorBoard and the curve picture
each read the same stream. Nothing here formats or stores anything. Epochs count from 0 in the
stream; what a person sees counts from 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStarted:
    """A run began (or went on, when `first_epoch` is not 0).

    `replicas` and `servers` are 0 where the strategy has none; `workers` are those of all replicas.
    """

    run_dir: Path
    model: str
    parameters: int
    strategy: str
    workers: int
    first_epoch: int
    epochs: int
    samples_per_epoch: int
    sample_name: str = "images"
    replicas: int = 0
    servers: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """A look at an epoch under way, a few times a second."""

    epoch: int
    samples_done: int
    samples_total: int
    samples_per_s: float
    loss: float
    lr: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaSpeed:
    """How fast one replica trains."""

    replica: int
    samples_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterProgress:
    """A look at replicas and servers, about once a second, beside `Progress`.

    `samples_seen` and the bytes are totals of the run; `server_load` is the busy share of each
    server's lanes; `held_up` the share of time that pushes waited for a server; `refused` the
    frames that servers have refused so far. Shares are 0 to 1, staleness is in updates.
    """

    epoch: int
    samples_seen: int
    replicas: tuple[ReplicaSpeed, ...]
    staleness_mean: float
    staleness_max: int
    pushed_bytes: int
    pulled_bytes: int
    pushed_bytes_per_s: float
    pulled_bytes_per_s: float
    server_load: tuple[float, ...]
    held_up: float
    refused: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochEnded:
    """An epoch is over and validated. `metrics` holds validation figures by name."""

    epoch: int
    step: int
    samples: int
    seconds: float
    train_loss: float
    lr: float
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLost:
    """A worker died; `replaced_by` is the process that took its place."""

    worker: int
    pid: int
    reason: str
    replaced_by: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaJoined:
    """A replica began to train."""

    replica: int
    pid: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaLost:
    """A replica is gone; `returned` pieces of its work went back to the others.

    `replaced_by` is the process that took its place.
    """

    replica: int
    pid: int
    reason: str
    returned: int
    replaced_by: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerJoined:
    """A parameter server takes part that was not there when the run began; it is empty at first."""

    server: int
    pid: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerLost:
    """A parameter server is gone. Unless it `restarts`, nobody takes its place."""

    server: int
    pid: int
    reason: str
    restarts: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PrimaryMoved:
    """Buckets that `server` served are served by others."""

    server: int
    buckets: int
    by: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CopiesRestored:
    """Every bucket has all its copies again, so many seconds after the first one was missed."""

    copies: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreRestored:
    """Every copy of some buckets was lost; `servers` read them back from the durable store.

    What was learned since they were last written there, which is done every `write_back_s`, is
    lost.
    """

    buckets: int
    servers: tuple[int, ...]
    write_back_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ControllerReplaced:
    """A controller died; `replaced_by` is the process that took its place."""

    pid: int
    reason: str
    replaced_by: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultInjected:
    """A FaultPlan did something: `action` is kill, pause, cut, or the end of one of the latter."""

    action: str
    targets: tuple[str, ...]
    pids: tuple[int, ...]
    push: int
    for_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointWritten:
    """A checkpoint is complete on disk."""

    path: Path
    epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """Something a person should know: a choice made, a part that was slow, a warning."""

    message: str
    warning: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnded:
    """The run is over. `reason` is one of: finished, early-stopped, interrupted, failed."""

    reason: str
    epochs_done: int
    seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    message: str = ""


Event = (
    RunStarted
    | Progress
    | ClusterProgress
    | EpochEnded
    | WorkerLost
    | ReplicaJoined
    | ReplicaLost
    | ServerJoined
    | ServerLost
    | PrimaryMoved
    | CopiesRestored
    | StoreRestored
    | ControllerReplaced
    | FaultInjected
    | CheckpointWritten
    | Note
    | RunEnded
)


class Sink(Protocol):
    """Anything that reads the stream. `handle` must be quick; `close` is called exactly once."""

    def handle(self, event: Event) -> None: ...

    def close(self) -> None: ...
