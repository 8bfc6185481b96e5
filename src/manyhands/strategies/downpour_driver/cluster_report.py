"""From what replicas and servers report to the figures that a person is shown."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from manyhands.parameter_server.reports import ServerReport
from manyhands.strategies.downpour_driver.replica_crew import ReplicaCrew
from manyhands.strategies.downpour_driver.server_crew import ServerCrew
from manyhands.telemetry.events import ClusterProgress, ReplicaSpeed

# A client that follows a bucket asks the wrong server now and then: nobody's trouble.
_ROUTINE = ("stale_lease", "out_of_step")


@dataclass(slots=True)
class _Seen:
    """The counters at the last report, from which rates are taken."""

    at: float
    pushed_bytes: int = 0
    pulled_bytes: int = 0
    waited_s: float = 0.0
    samples: dict[int, int] = field(default_factory=dict)
    # By the process, since one that was started again counts from nothing.
    servers: dict[str, ServerReport] = field(default_factory=dict)


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
        traffic = self._crew.traffic()
        places = [place for place in self._crew.places if place.ready]
        servers = {p.incarnation: p.report for p in self._servers.places if p.report is not None}
        self._seen = _Seen(
            now,
            traffic.pushed_bytes,
            traffic.pulled_bytes,
            traffic.waited_s,
            {place.number: place.samples for place in places},
            servers,
        )
        pairs = [(before.servers.get(name), report) for name, report in servers.items()]
        mean, largest = _summary(_added([_staleness(*pair) for pair in pairs]))
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
            server_load=tuple(_share(_busy_s(*pair) / seconds / self._lanes) for pair in pairs),
            held_up=_share((traffic.waited_s - before.waited_s) / seconds / max(1, len(places))),
            refused=sum(_refusals(report) for report in servers.values()),
        )


def _busy_s(before: ServerReport | None, now: ServerReport) -> float:
    return now.busy_s - (before.busy_s if before else 0.0)


def _staleness(before: ServerReport | None, now: ServerReport) -> list[int]:
    if before is None:
        return list(now.staleness)
    return [a - b for a, b in zip(now.staleness, before.staleness, strict=True)]


def _refusals(report: ServerReport) -> int:
    return report.refusals - sum(report.refused.get(name, 0) for name in _ROUTINE)


def _added(histograms: Sequence[Sequence[int]]) -> list[int]:
    return [sum(counts) for counts in zip(*histograms, strict=True)]


def _summary(histogram: list[int]) -> tuple[float, int]:
    """The mean and the largest staleness of a histogram that counts 0, 1, 2, ..."""
    total = sum(histogram)
    if not total:
        return 0.0, 0
    mean = sum(value * count for value, count in enumerate(histogram)) / total
    return mean, max(value for value, count in enumerate(histogram) if count)


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))
