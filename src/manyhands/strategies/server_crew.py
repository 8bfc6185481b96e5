"""The parameter servers of a run as the driver knows them: what they report, who is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from manyhands.errors import WorkerError
from manyhands.launch.local import error_of
from manyhands.launch.role_process import Failure
from manyhands.parameter_server.reports import ServerReport
from manyhands.strategies.cluster import Cluster
from manyhands.strategies.notices import Notices


class ServerCrew:
    """Hears servers; the loss of one ends the run. Thread-safe."""

    def __init__(self, cluster: Cluster, notices: Notices) -> None:
        self._cluster = cluster
        self._notices = notices
        self._reports: dict[int, ServerReport] = {}
        self._lost: set[int] = set()

    @property
    def reports(self) -> list[ServerReport]:
        """The last report of each server."""
        with self._notices.changed:
            return [self._reports[number] for number in sorted(self._reports)]

    def look(self) -> None:
        """Nothing is due by the clock."""

    def channels(self) -> Mapping[Connection, Callable[[Any], None]]:
        return {
            role.channel: partial(self._hear, number)
            for number, role in enumerate(self._cluster.servers)
            if number not in self._lost
        }

    def _hear(self, number: int, message: Any) -> None:
        if isinstance(message, ServerReport):
            self._reports[number] = message
        elif isinstance(message, Failure):
            raise error_of(f"parameter server {number}", message)
        elif message is None:
            self._lose(number)

    def _lose(self, number: int) -> None:
        self._lost.add(number)
        role = self._cluster.servers[number]
        error = WorkerError(
            f"Parameter server {number} (process {role.pid}) {role.ending()}, and its part "
            "of the weights is lost: resume the run from its last checkpoint."
        )
        self._notices.fail(error)  # before the calls that wait for that server end with their own
        self._cluster.hang_up()
