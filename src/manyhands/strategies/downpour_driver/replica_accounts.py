"""What the driver knows of a replica, of an epoch and of the traffic: plain records."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import torch

from manyhands.launch.local import Role
from manyhands.strategies.downpour_replica.messages import ReplicaReport


@dataclass(slots=True)
class ReplicaPlace:
    """A replica as the driver knows it."""

    number: int
    role: Role
    started: float
    report: ReplicaReport | None = None
    samples: int = 0
    ready: bool = False
    leaving: float | None = None  # since when
    flushed: bool = False
    heard: float = field(default_factory=time.monotonic)
    failure: str = ""  # why it ended itself, or was ended
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def samples_per_s(self) -> float:
        seconds = time.monotonic() - self.started
        return self.samples / seconds if self.ready and seconds > 0 else 0.0


@dataclass(slots=True)
class EpochAccount:
    """What the replicas reported of an epoch."""

    samples: int = 0
    loss_sum: float = 0.0
    began: float | None = None  # when its first piece was given out

    @property
    def loss(self) -> float:
        return self.loss_sum / self.samples if self.samples else math.nan


@dataclass(slots=True)
class Traffic:
    """What replicas have pushed and pulled."""

    pushed_bytes: int = 0
    pulled_bytes: int = 0
    waited_s: float = 0.0

    def add(self, report: ReplicaReport | None) -> None:
        if report is not None:
            self.pushed_bytes += report.pushed_bytes
            self.pulled_bytes += report.pulled_bytes
            self.waited_s += report.waited_s
