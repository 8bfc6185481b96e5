"""The parameter servers of a run as the driver knows them: who serves, who is lost, who follows.

Which of them holds what is the controller's to decide; here processes are started, heard, told of
to the controller, and started again (Adam, section 3.3.3).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from manyhands.errors import ConfigError, WorkerError
from manyhands.launch.local import Role, close_all, error_of
from manyhands.launch.role_process import Failure
from manyhands.parameter_server.placement import Placement
from manyhands.parameter_server.reports import ServerReport
from manyhands.parameter_server.server_task import Cut, Serving, Stop
from manyhands.strategies.downpour_driver.controller_keeper import ControllerKeeper
from manyhands.strategies.downpour_driver.notices import Notices
from manyhands.strategies.downpour_driver.placement_story import is_empty
from manyhands.strategies.downpour_driver.restarts import RestartHistory, too_often
from manyhands.strategies.downpour_driver.store_watch import StoreWatch
from manyhands.telemetry.events import Note, ServerJoined, ServerLost

_START_WITHIN_S = 120.0
_SILENCE_S = 30.0
_AWAY_S = 5.0


@dataclass(slots=True)
class ServerPlace:
    """A server as the driver knows it."""

    number: int
    role: Role
    first: bool  # it was there when the run began
    incarnation: str = ""  # empty until it serves
    report: ServerReport | None = None
    leaving: bool = False
    stopped: bool = False  # it was told to end
    heard: float = field(default_factory=time.monotonic)
    failure: str = ""  # why it ended itself, or was ended


class ServerCrew:
    """Starts servers and replaces who dies. Thread-safe.

    `start_server` starts the process of one; `hang_up` ends what the driver waits for when the run
    can't go on.
    """

    def __init__(
        self,
        start_server: Callable[[int], Role],
        controller: ControllerKeeper,
        notices: Notices,
        hang_up: Callable[[], None],
    ) -> None:
        self._start_server = start_server
        self._controller = controller
        self._notices = notices
        self._changed = notices.changed
        self._hang_up = hang_up
        self._servers: dict[int, ServerPlace] = {}
        self._histories: dict[int, RestartHistory] = {}
        self._due: dict[int, float] = {}  # when a successor starts
        self._excused: set[int] = set()
        self._next_number = 0
        self._gone_updates = 0
        self._store = StoreWatch()
        self._placement: Placement | None = None
        self._looked = time.monotonic()
        self._closing = False

    # --- for the session

    def start(self, count: int) -> None:
        """Start the servers that a run begins with, without waiting for them."""
        for _ in range(count):
            self._place(self._new_number(), first=True)

    def await_serving(self) -> None:
        """Wait for them. WorkerError, or what a server raised, when one does not serve."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._notices.has_failed or not self._missing(), _START_WITHIN_S
            )
            self._notices.check()
            if missing := self._missing():
                raise WorkerError(
                    f"Parameter server {missing[0]} did not start within {_START_WITHIN_S:g} s."
                )

    def _missing(self) -> list[int]:
        starting = [place.number for place in self._servers.values() if not place.incarnation]
        return [*starting, *self._due]

    def add(self, count: int) -> list[int]:
        """Start more servers, which take over their part when they serve; their numbers."""
        numbers = [self._new_number() for _ in range(count)]
        for number in numbers:
            self._place(number, first=False)
        return numbers

    def drain(self, number: int) -> None:
        """Have a server emptied, then end it. ConfigError when that can't be."""
        with self._changed:
            staying = [place.number for place in self._servers.values() if not place.leaving]
            if number not in self._servers:
                raise ConfigError(f"There is no server {number}; the run has {staying}.")
            if staying == [number]:
                raise ConfigError(f"Server {number} is the only one that stays: add one first.")
        self._controller.ask("drain", server=number)
        with self._changed:
            if number in self._servers:
                self._servers[number].leaving = True

    @property
    def places(self) -> list[ServerPlace]:
        with self._changed:
            return [self._servers[number] for number in sorted(self._servers)]

    @property
    def reports(self) -> list[ServerReport]:
        """The last report of each server that runs."""
        return [place.report for place in self.places if place.report is not None]

    @property
    def updates(self) -> int:
        """Updates of chunks that were applied, those of servers that are gone included."""
        with self._changed:
            return self._gone_updates + sum(report.updates for report in self.reports)

    def expect_death(self, number: int) -> None:
        """The next death of this server is nobody's fault, and does not count."""
        with self._changed:
            self._excused.add(number)

    def cut(self, number: int, other: int | None, on: bool) -> None:
        """Cut a server off from another (None: the controller), or end that."""
        with self._changed:
            if number in self._servers:
                self._servers[number].role.send(Cut(other, on))

    def note(self, placement: Placement) -> None:
        """Let go of servers that were asked to leave and hold nothing any more."""
        self._placement = placement
        with self._changed:
            for place in self._servers.values():
                if place.leaving and not place.stopped and is_empty(placement, place.number):
                    place.stopped = True
                    place.role.send(Stop())

    def close(self) -> None:
        """End every server; may be called twice. The coordinator has been closed before."""
        with self._changed:
            self._closing = True
        close_all([place.role for place in self._servers.values()])

    # --- for the coordinator

    def channels(self) -> Mapping[Connection, Callable[[Any], None]]:
        return {place.role.channel: partial(self._hear, place) for place in self._servers.values()}

    def look(self) -> None:
        """Start successors that are due, and kill servers that say nothing."""
        now = time.monotonic()
        away, self._looked = now - self._looked > _AWAY_S, now
        for number in [number for number, due in self._due.items() if due <= now]:
            del self._due[number]
            self._place(number, first=False)
        for place in self._servers.values():
            if away:  # it was us who were stopped, and heard nobody
                place.heard = now
            if now - place.heard > _SILENCE_S and not place.failure and self._is_spare(place):
                place.failure = f"said nothing for {now - place.heard:.0f} s and was ended"
                place.role.process.kill()

    def _is_spare(self, place: ServerPlace) -> bool:
        """Whether nothing is lost with a server that says nothing: others serve all it held.

        One that was stopped with the only copy of a bucket may come back with it.
        """
        placement = self._placement
        return bool(place.report) and placement is not None and is_empty(placement, place.number)

    def _hear(self, place: ServerPlace, message: Any) -> None:
        place.heard = time.monotonic()
        if isinstance(message, ServerReport):
            place.report = message
            self._judge(message)
        elif isinstance(message, Serving):
            place.incarnation = message.incarnation
            if not place.first:
                self._notices.tell(ServerJoined(server=place.number, pid=place.role.pid))
        elif isinstance(message, Failure):
            if place.first and isinstance(message.known, ConfigError):
                raise error_of(f"parameter server {place.number}", message)
            place.failure = message.summary
        elif message is None:
            self._lose(place)

    def _judge(self, report: ServerReport) -> None:
        if report.store is not None:
            for note in self._store.look(report.server, report.store.trouble):
                self._notices.tell(note)
        if report.lost_buckets and not self._notices.has_failed:
            # Before the calls that wait for those buckets end with an error of their own.
            self._notices.fail(
                WorkerError(
                    f"Every copy of {report.lost_buckets} buckets of the weights is lost, and they "
                    "can't be read back from the disk: resume the run from its last checkpoint."
                )
            )
            self._hang_up()

    def _lose(self, place: ServerPlace) -> None:
        reason = place.role.ending()
        reason = place.failure or reason
        place.role.close()
        number = place.number
        del self._servers[number]
        self._gone_updates += place.report.updates if place.report else 0
        if place.incarnation:
            self._controller.send("dead", server=number, incarnation=place.incarnation)
        if place.stopped:
            self._notices.tell(Note(message=f"server {number} is empty and left as asked"))
            return
        pause_s = self._pause(number)
        if place.leaving or pause_s is None:
            self._give_up(place, reason if place.leaving else too_often(reason))
            return
        self._due[number] = time.monotonic() + pause_s
        lost = ServerLost(server=number, pid=place.role.pid, reason=reason, restarts=True)
        self._notices.tell(lost)
        self.look()

    def _pause(self, number: int) -> float | None:
        """Seconds until a successor starts; None when there is to be none."""
        if number in self._excused:
            self._excused.discard(number)
            return 0.0
        history = self._histories.setdefault(number, RestartHistory())
        return history.pause_after_death(time.monotonic())

    def _give_up(self, place: ServerPlace, reason: str) -> None:
        pid = place.role.pid
        lost = ServerLost(server=place.number, pid=pid, reason=reason, restarts=False)
        self._notices.tell(lost)
        if not self._servers and not self._due:
            self._notices.fail(
                WorkerError(
                    f"No parameter server is left: server {place.number} (process {pid}) was the "
                    f"last one ({reason}). Look for what kills it, then resume the run."
                )
            )
            self._hang_up()

    def _new_number(self) -> int:
        with self._changed:
            number, self._next_number = self._next_number, self._next_number + 1
            return number

    def _place(self, number: int, *, first: bool) -> None:
        place = ServerPlace(number, self._start_server(number), first)
        with self._changed:
            if not self._closing:
                self._servers[number] = place
                return
        place.role.close()
