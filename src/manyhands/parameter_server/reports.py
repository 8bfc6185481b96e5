"""What a server says of itself to the driver, twice a second."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import psutil

from manyhands.parameter_server.persistence import StoreReport


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerReport:
    """Counts since the server started; the difference of two reports gives rates.

    `busy_s` is the time that its lanes spent working, together. `staleness` counts updates by how
    many others they did not know of: 0 to 63, then 64 and more. `waiting_bytes` are in payloads
    under way; `blocked_replies` counts how often a client that did not read its answers was no
    longer read from. `held_replies` wait for copies to have what they acknowledge. `lost_buckets`
    were to be read back from the durable store, which lacks them: nobody can serve them any more.
    """

    server: int
    time_s: float  # of the machine's monotonic clock
    updates: int
    frames: int
    pushed_bytes: int
    pulled_bytes: int
    replays: int
    refused: dict[str, int]
    strangers: int
    staleness: tuple[int, ...]
    busy_s: float
    rounds: int
    batched_max: int
    connections: int
    waiting_bytes: int
    blocked_replies: int
    resident_bytes: int
    replicated_updates: int = 0
    replicated_bytes: int = 0
    snapshots_sent: int = 0
    held_replies: int = 0
    lost_buckets: int = 0
    store: StoreReport | None = None

    @property
    def refusals(self) -> int:
        """Frames and peers that were turned away, for whatever reason."""
        return sum(self.refused.values()) + self.strangers

    @property
    def mean_staleness(self) -> float:
        """Over all updates so far; those of 64 and more count as 64."""
        updates = sum(self.staleness)
        return sum(n * count for n, count in enumerate(self.staleness)) / max(1, updates)


def report(
    server: int,
    stats: dict[str, Any],
    *,
    strangers: int,
    lost_buckets: int = 0,
    store: StoreReport | None = None,
) -> ServerReport:
    """A report out of the kernels' statistics, and what else the server counts."""
    return ServerReport(
        server=server,
        time_s=time.monotonic(),
        updates=stats["updates"],
        frames=stats["frames"],
        pushed_bytes=stats["pushed_bytes"],
        pulled_bytes=stats["pulled_bytes"],
        replays=stats["replays"],
        refused=dict(stats["refused"]),
        strangers=strangers,
        staleness=tuple(stats["staleness"]),
        busy_s=stats["busy_s"],
        rounds=stats["rounds"],
        batched_max=stats["batched_max"],
        connections=stats["connections"],
        waiting_bytes=stats["waiting_bytes"],
        blocked_replies=stats["blocked_replies"],
        resident_bytes=psutil.Process().memory_info().rss,
        replicated_updates=stats["replicated_updates"],
        replicated_bytes=stats["replicated_bytes"],
        snapshots_sent=stats["snapshots_sent"],
        held_replies=stats["held_replies"],
        lost_buckets=lost_buckets,
        store=store,
    )
