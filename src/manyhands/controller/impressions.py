"""What one controller remembers between two decisions, and what it makes of it for the next.

None of this is in the registry: a successor forms its own impressions within a heartbeat or two.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from manyhands.controller.attendance import Attendance
from manyhands.controller.heartbeat import Heartbeat
from manyhands.controller.policies import Reports
from manyhands.controller.quarrels import Quarrels
from manyhands.controller.settings import ControllerSettings
from manyhands.controller.view import View
from manyhands.parameter_server.placement import Joining, Placement

_PAUSED_S = 0.25  # between two looks at the clock: this process did not run


@dataclass(frozen=True, slots=True)
class Impression:
    """One moment: what `policies.decide` is given."""

    view: View
    reports: Reports
    calm: bool


class Impressions:
    """Heartbeats, requests, quarrels and joins under way. Not thread-safe; time is an argument."""

    def __init__(self, settings: ControllerSettings, loads: Mapping[int, int]) -> None:
        self._settings = settings
        self._loads = loads
        self._quarrels = Quarrels()
        self._joins: dict[tuple[int, Joining], float] = {}  # when each was first seen
        self._dead: set[tuple[int, str]] = set()
        self._drains: dict[int, bool] = {}
        self._changed_s = 0.0
        self._looked_s: float | None = None
        self.attendance = Attendance(lease_s=settings.lease_s, closed_s=settings.closed_s)

    def hear(self, beat: Heartbeat, connection: Hashable, now: float) -> bool:
        """Note a heartbeat; whether it brings news."""
        self.look(now)
        return self.attendance.hear(beat, connection, now)

    def look(self, now: float) -> None:
        """Notice time that passed without us."""
        gap_s = 0.0 if self._looked_s is None else now - self._looked_s
        if gap_s > _PAUSED_S:
            self.attendance.forgive(gap_s, now)
        self._looked_s = now

    def declare_dead(self, server: int, incarnation: str) -> None:
        """The driver saw the process end."""
        self.attendance.bury(server, incarnation)
        self._dead.add((server, incarnation))

    def ask_to_leave(self, server: int, draining: bool) -> None:
        """A server is to be emptied, or is to stay after all."""
        self._drains[server] = draining

    def placed(self, placement: Placement, now: float) -> None:
        """A placement was published: forget requests that it grants, time the joins it has."""
        self._changed_s = now
        entries = {(b, j) for b, place in placement.buckets.items() for j in place.joining}
        self._joins = {entry: self._joins.get(entry, now) for entry in entries}
        members = placement.members
        self._dead = {(s, i) for s, i in self._dead if s in members and members[s].incarnation == i}
        self._drains = {
            s: draining
            for s, draining in self._drains.items()
            if s in members and members[s].draining != draining
        }

    def impression(self, placement: Placement, now: float) -> Impression:
        """This moment, to decide about."""
        self.look(now)
        reports = self._reports(placement, now)
        self._note_quarrels(placement, reports, now)
        view = View(
            alive=self.attendance.alive(now),
            fresh=self.attendance.fresh(now),
            loads=self._loads,
            copies=self._settings.copies,
            progress=self.attendance.progress(),
            avoided=self._quarrels.avoided(now),
            join_bytes=self._settings.join_bytes,
        )
        return Impression(view, reports, now - self._changed_s >= self._settings.settle_s)

    def _reports(self, placement: Placement, now: float) -> Reports:
        known = {server: member.incarnation for server, member in placement.members.items()}
        return Reports(
            arrived=tuple(
                member
                for member in self.attendance.present(now)
                if known.get(member.server) != member.incarnation
            ),
            dead=tuple(sorted(self._dead)),
            drains=dict(self._drains),
            in_step=self.attendance.claims(),
            suspicions=self.attendance.suspicions(now),
            overdue=tuple(
                (bucket, joining)
                for (bucket, joining), began_s in self._joins.items()
                if now - began_s > self._settings.join_s(self._loads[bucket])
            ),
        )

    def _note_quarrels(self, placement: Placement, reports: Reports, now: float) -> None:
        for member in reports.arrived:
            self._quarrels.forget(member.server)
        for suspicion in reports.suspicions:
            if any(
                place.primary == suspicion.primary and suspicion.server in place.copies
                for place in placement.buckets.values()
            ):
                self._quarrels.note(suspicion.primary, suspicion.server, now)
        for bucket, joining in reports.overdue:
            primary = placement.buckets[bucket].primary
            if primary is not None:
                self._quarrels.note(primary, joining.server, now)
