"""Who is heard: heartbeats, their absence, and the words that came with them.

A server counts as lost when its heartbeats stop for `lease_s`, or when their connection is closed
and it is not back within `closed_s`: the death of a process closes its connections at once, that
of a machine does not. Time is an argument everywhere.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from manyhands.controller.copies import InStep, Suspicion
from manyhands.controller.heartbeat import Heartbeat
from manyhands.errors import StaleRoute
from manyhands.parameter_server.placement import Member, Placement

_FRESH_S = 0.25  # two heartbeats and a half
_BEATS_OF_SUSPICION = 2  # a server that was paused itself finds everybody late, once


@dataclass(slots=True)
class _Heard:
    """One server, by its newest process."""

    member: Member
    last_s: float  # when it was heard, or when waiting for it began
    connection: Hashable = None
    closed_s: float | None = None
    beat: Heartbeat | None = None
    beat_s: float = float("-inf")
    suspected: dict[int, int] = field(default_factory=dict)  # server -> beats in a row
    progress: Mapping[int, int] = field(default_factory=dict)  # not every heartbeat brings it


class Attendance:
    """The servers as they were heard. Not thread-safe."""

    def __init__(self, *, lease_s: float, closed_s: float) -> None:
        self._lease_s = lease_s
        self._closed_s = closed_s
        self._heard: dict[int, _Heard] = {}
        self._gone: set[tuple[int, str]] = set()

    def expect(self, placement: Placement | None, now: float) -> None:
        """Give every member of a placement, and everybody heard before, time to be heard."""
        for server, member in () if placement is None else placement.members.items():
            if (server, member.incarnation) not in self._gone:
                self._heard.setdefault(server, _Heard(member, now))
        for heard in self._heard.values():
            heard.last_s, heard.closed_s = now, None

    def hear(self, beat: Heartbeat, connection: Hashable, now: float) -> bool:
        """Note a heartbeat; whether it brings news. StaleRoute to a process that was replaced."""
        server, incarnation = beat.member.server, beat.member.incarnation
        if (server, incarnation) in self._gone:
            raise StaleRoute(
                f"Server {server} was declared dead or started anew: this process of it must end."
            )
        heard = self._heard.get(server)
        new = heard is None or heard.member.incarnation != incarnation
        if heard is not None and new:
            self._gone.add((server, heard.member.incarnation))
        if heard is None or new:
            heard = self._heard[server] = _Heard(beat.member, now)
        new |= heard.closed_s is not None
        heard.last_s, heard.connection, heard.closed_s = now, connection, None
        heard.suspected = {
            suspect: heard.suspected.get(suspect, 0) + 1 for suspect in beat.suspects
        }
        heard.beat, heard.beat_s = beat, now
        heard.progress = beat.progress or heard.progress
        return new or bool(beat.in_step or beat.suspects)

    def hang_up(self, connection: Hashable, now: float) -> None:
        """Note that a connection has ended."""
        for heard in self._heard.values():
            if heard.connection == connection and heard.closed_s is None:
                heard.closed_s = now

    def bury(self, server: int, incarnation: str) -> None:
        """Never listen to this process again: it is dead."""
        self._gone.add((server, incarnation))
        heard = self._heard.get(server)
        if heard is not None and heard.member.incarnation == incarnation:
            del self._heard[server]

    def forgive(self, gap_s: float, now: float) -> None:
        """Don't count the time until now in which nobody listened: we were paused ourselves."""
        for heard in self._heard.values():
            heard.last_s = min(now, heard.last_s + gap_s)
            if heard.closed_s is not None:
                heard.closed_s = min(now, heard.closed_s + gap_s)

    def alive(self, now: float) -> frozenset[int]:
        """The servers that are heard."""
        return frozenset(n for n, heard in self._heard.items() if self._is_heard(heard, now))

    def fresh(self, now: float) -> frozenset[int]:
        """The servers that are heard this very moment, on a connection that is open."""
        return frozenset(
            server
            for server, heard in self._heard.items()
            if heard.closed_s is None and now - heard.beat_s <= _FRESH_S
        )

    def present(self, now: float) -> tuple[Member, ...]:
        """Servers that spoke themselves, within the time of a lease: not those only expected."""
        return tuple(
            heard.member
            for _, heard in sorted(self._heard.items())
            if heard.closed_s is None and now - heard.beat_s <= self._lease_s
        )

    def members(self) -> Mapping[int, Member]:
        """Every server that spoke or is expected to, by its newest process."""
        return {server: heard.member for server, heard in self._heard.items()}

    def claims(self) -> tuple[InStep, ...]:
        """What primaries said is in step, each in its last heartbeat."""
        beats = [heard.beat for heard in self._heard.values() if heard.beat is not None]
        return tuple(claim for beat in beats for claim in beat.in_step)

    def suspicions(self, now: float) -> tuple[Suspicion, ...]:
        """Whom servers that are heard have suspected more than once in a row."""
        return tuple(
            Suspicion(server, suspect, heard.beat.known)
            for server, heard in self._heard.items()
            if heard.beat is not None and self._is_heard(heard, now)
            for suspect, beats in heard.suspected.items()
            if beats >= _BEATS_OF_SUSPICION
        )

    def progress(self) -> Mapping[int, Mapping[int, int]]:
        """How far each server's copies are, by bucket."""
        return {server: heard.progress for server, heard in self._heard.items()}

    def newest_known(self) -> int:
        """The newest placement that any server has heard of."""
        return max((h.beat.known for h in self._heard.values() if h.beat is not None), default=0)

    def _is_heard(self, heard: _Heard, now: float) -> bool:
        if heard.closed_s is not None and now - heard.closed_s > self._closed_s:
            return False
        return now - heard.last_s <= self._lease_s
