"""From what replicas and servers report to the figures that a person is shown."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from manyhands.parameter_server.reports import ServerReport
from manyhands.strategies.replica_crew import ReplicaCrew
from manyhands.strategies.server_crew import ServerCrew
from manyhands.telemetry.events import ClusterProgress, ReplicaSpeed


@dataclass(slots=True)
class _Seen:
    """The counters at the last report, from which rates are taken."""

    at: float
    pushed_bytes: int = 0
    pulled_bytes: int = 0
    waited_s: float = 0.0
    samples: dict[int, int] = field(default_factory=dict)
    busy_s: list[float] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)


class ClusterReport:
    """Makes an event of the counters every `every_s`; rates are those since the one before."""

    def __init__(
        self, crew: ReplicaCrew, servers: ServerCrew, *, every_s: float, lanes: int
    ) -> None:
        self._crew = crew
        self._servers = servers
        self._every_s = every_s
        self._lanes = lanes
        self._seen = _Seen(time.monotonic())

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._seen.at >= self._every_s

    def take(self, epoch: int, samples_seen: int) -> ClusterProgress:
        """The figures since the last call."""
        before, now = self._seen, time.monotonic()
        seconds = max(now - before.at, 1e-9)
        traffic, servers = self._crew.traffic(), self._servers.reports
        places = [place for place in self._crew.places if place.ready]
        staleness = _added([list(report.staleness) for report in servers])
        self._seen = _Seen(
            now,
            traffic.pushed_bytes,
            traffic.pulled_bytes,
            traffic.waited_s,
            {place.number: place.samples for place in places},
            [report.busy_s for report in servers],
            staleness,
        )
        mean, largest = _summary(_since(staleness, before.staleness))
        return ClusterProgress(
            epoch=epoch,
            samples_seen=samples_seen,
            replicas=tuple(
                ReplicaSpeed(
                    replica=place.number,
                    samples_per_s=max(0, place.samples - before.samples.get(place.number, 0))
                    / seconds,
                )
                for place in places
            ),
            staleness_mean=mean,
            staleness_max=largest,
            pushed_bytes=traffic.pushed_bytes,
            pulled_bytes=traffic.pulled_bytes,
            pushed_bytes_per_s=(traffic.pushed_bytes - before.pushed_bytes) / seconds,
            pulled_bytes_per_s=(traffic.pulled_bytes - before.pulled_bytes) / seconds,
            server_load=self._loads(servers, before, seconds),
            held_up=_share((traffic.waited_s - before.waited_s) / seconds / max(1, len(places))),
            refused=sum(report.refusals for report in servers),
        )

    def _loads(
        self, servers: list[ServerReport], before: _Seen, seconds: float
    ) -> tuple[float, ...]:
        earlier = before.busy_s or [0.0] * len(servers)
        return tuple(
            _share((report.busy_s - then) / seconds / self._lanes)
            for report, then in zip(servers, earlier, strict=False)
        )


def _added(histograms: list[list[int]]) -> list[int]:
    return [sum(counts) for counts in zip(*histograms, strict=True)]


def _since(now: list[int], before: list[int]) -> list[int]:
    return [a - b for a, b in zip(now, before, strict=True)] if before else now


def _summary(histogram: list[int]) -> tuple[float, int]:
    """The mean and the largest staleness of a histogram that counts 0, 1, 2, ..."""
    total = sum(histogram)
    if not total:
        return 0.0, 0
    mean = sum(value * count for value, count in enumerate(histogram)) / total
    return mean, max(value for value, count in enumerate(histogram) if count)


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))
