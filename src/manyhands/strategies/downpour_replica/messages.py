"""What the driver and a replica of Downpour tell one another, over the replica's channel."""

from __future__ import annotations

from dataclasses import dataclass

from manyhands.strategies.leases import Lease


@dataclass(frozen=True, slots=True)
class Ask:
    """To the driver: there is room for one more piece."""


@dataclass(frozen=True, slots=True)
class Grant:
    """To a replica: train on this piece."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class PieceDone:
    """To the driver: a piece is trained; its update is in the replica's weights."""

    lease: Lease
    samples: int
    loss: float


@dataclass(frozen=True, slots=True)
class GivenBack:
    """To the driver: this piece will not be trained here."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Flush:
    """To a replica: send everything that is done, then answer with `Flushed`."""


@dataclass(frozen=True, slots=True)
class Flushed:
    """To the driver: nothing that was done before `Flush` is left here, if `complete`."""

    complete: bool


@dataclass(frozen=True, slots=True)
class Leave:
    """To a replica: finish what is under way, send it, and end."""


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """To the driver, twice a second: what the replica did since it began."""

    pushed_bytes: int
    pulled_bytes: int
    waited_s: float
    buffers: bytes | None  # those that changed; tensors themselves would travel as open files
