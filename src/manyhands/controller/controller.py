"""The controller: hears servers, lets the policies decide, writes the registry, tells everybody.

Adam, section 3.3.3. A loop around pure decisions (`policies.py`):

    1 hear      threads of the call server note who is heard and what they report
    2 decide    the loop: placement + view + reports -> the next placement, or none
    3 commit    compare-and-swap in the registry, only while we lead (`leadership.py`)
    4 publish   the committed placement answers heartbeats and long polls

Nothing is told that is not committed. While the registry is away nothing is decided, heartbeats are
answered with what was, and servers and clients go on. A controller that dies takes only its
impressions with it: its successor reads the placement and listens.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from manyhands.controller import balance, policies
from manyhands.controller.bulletin import Bulletin, packed, unpacked
from manyhands.controller.heartbeat import Heartbeat
from manyhands.controller.impressions import Impressions
from manyhands.controller.leadership import Leadership
from manyhands.controller.registry import Entry, Registry
from manyhands.controller.settings import ControllerSettings
from manyhands.controller.status import status
from manyhands.controller.view import View
from manyhands.errors import ConfigError, ProtocolError, RegistryUnavailable, ServerUnavailable
from manyhands.parameter_server.placement import Placement

logger = logging.getLogger(__name__)

PLACEMENT_KEY = "placement"
_TICK_S = 0.05
_LONGEST_POLL_S = 10.0
REQUEST_S = 5.0  # in which a request is committed, or refused


@dataclass(frozen=True, kw_only=True, slots=True)
class Buckets:
    """What there is to place: the home of each bucket at the beginning, and its size."""

    homes: Mapping[int, int]
    loads: Mapping[int, int]  # bytes


class Controller:
    """Keeps buckets on living servers. Use it in a `with` statement; `handle` is thread-safe.

    It stands by while another controller leads, and takes over when that one's lease ends.
    """

    def __init__(
        self, registry: Registry, settings: ControllerSettings, buckets: Buckets, *, name: str
    ) -> None:
        self._registry = registry
        self._settings = settings
        self._buckets = buckets
        self._leadership = Leadership(registry, name.encode(), ttl_s=settings.leader_s)
        self._bulletin = Bulletin()
        self._impressions = Impressions(settings, buckets.loads)
        self._news = threading.Condition()  # guards the impressions
        self._closed = False
        self._term = 0  # the revision of the leader's entry that we have read the placement under
        self._revision = 0  # of the placement in the registry
        self._undecided: object = None  # what the last look that led to nothing saw
        self._doubtful = False  # whether the registry may hold more than we have read
        self._trouble = ""  # why nothing can be decided at present
        self._loop = threading.Thread(target=self._run, name="controller", daemon=True)
        self._commands = {
            "heartbeat": self._heartbeat,
            "placement": self._placement,
            "dead": self._dead,
            "drain": self._drain,
            "undrain": self._undrain,
            "status": self._status,
        }

    def start(self) -> None:
        """Begin to try to lead, and to decide while we do."""
        self._leadership.start()
        self._loop.start()

    def close(self) -> None:
        """Decide nothing more and hand the lead over."""
        with self._news:
            self._closed = True
            self._news.notify_all()
        self._bulletin.close()
        if self._loop.is_alive():
            self._loop.join()
        self._leadership.close()

    def __enter__(self) -> Controller:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def handle(self, command: str, arguments: Mapping[str, Any], connection: Hashable) -> Any:
        """Answer a call; ManyhandsError for what can't be answered."""
        handler = self._commands.get(command)
        if handler is None:
            raise ProtocolError(f"A controller does not know the command {command!r:.100}.")
        rival = self._leadership.rival
        if rival is not None:
            raise ServerUnavailable(
                f"This controller stands by; {rival.decode(errors='replace')} leads."
            )
        return handler(arguments, connection)

    def hang_up(self, connection: Hashable) -> None:
        """A connection has ended."""
        with self._news:
            self._impressions.attendance.hang_up(connection, time.monotonic())

    def _heartbeat(self, arguments: Mapping[str, Any], connection: Hashable) -> Any:
        beat = Heartbeat.from_arguments(arguments)
        with self._news:
            if self._impressions.hear(beat, connection, time.monotonic()):
                self._news.notify_all()
        return {"placement": self._bulletin.newer_than(beat.known)}

    def _placement(self, arguments: Mapping[str, Any], connection: Hashable) -> Any:
        after, wait_s = arguments.get("after", -1), arguments.get("wait_s", 0.0)
        if type(after) is not int or not isinstance(wait_s, (int, float)) or wait_s < 0:
            raise ProtocolError("placement wants after, a version, and wait_s, seconds.")
        return {"placement": self._bulletin.newer_than(after, min(wait_s, _LONGEST_POLL_S))}

    def _dead(self, arguments: Mapping[str, Any], connection: Hashable) -> Any:
        server, incarnation = arguments.get("server"), arguments.get("incarnation")
        if type(server) is not int or not isinstance(incarnation, str):
            raise ProtocolError("dead wants server, its number, and incarnation, its process.")
        with self._news:
            self._impressions.declare_dead(server, incarnation)
            self._news.notify_all()
        if self._bulletin.placement is not None:  # else nothing is placed yet that it could hold
            self._await_committed(lambda placement: not _lives(placement, server, incarnation))
        return {}

    def _drain(self, arguments: Mapping[str, Any], connection: Hashable) -> Any:
        return self._ask_to_leave(arguments.get("server"), True)

    def _undrain(self, arguments: Mapping[str, Any], connection: Hashable) -> Any:
        return self._ask_to_leave(arguments.get("server"), False)

    def _ask_to_leave(self, server: Any, draining: bool) -> Any:
        placement = self._bulletin.placement
        if placement is None:
            raise ServerUnavailable("Nothing is placed yet, or not yet read: ask again.")
        if server not in placement.members:
            known = sorted(placement.members)
            raise ConfigError(f"There is no server {server!r}; the run has {known}.")
        with self._news:
            self._impressions.ask_to_leave(server, draining)
            self._news.notify_all()
        self._await_committed(lambda placement: _is_marked(placement, server, draining))
        return {}

    def _await_committed(self, is_done: Callable[[Placement], bool]) -> None:
        """Wait until a request is committed: from then on it outlives this controller."""
        deadline = time.monotonic() + REQUEST_S
        while time.monotonic() < deadline and not self._closed:
            placement = self._bulletin.placement
            assert placement is not None
            if is_done(placement):
                return
            self._bulletin.newer_than(placement.version, deadline - time.monotonic())
        raise ServerUnavailable("The request was not noted: the registry is away. Ask again.")

    def _status(self, arguments: Mapping[str, Any], connection: Hashable) -> Any:
        with self._news:
            alive = self._impressions.attendance.alive(time.monotonic())
        placed = status(self._bulletin.placement, alive, self._buckets.loads, self._settings.copies)
        return placed | {"trouble": self._trouble or self._leadership.trouble}

    def _run(self) -> None:
        while not self._closed:
            try:
                self._step()
                self._trouble = ""
            except RegistryUnavailable as error:
                if not self._trouble:
                    logger.warning("Nothing can be decided, servers go on meanwhile: %s", error)
                self._trouble, self._doubtful = str(error), True
            except Exception:  # the loop must live as long as its process
                logger.exception("A decision failed")
                self._doubtful = True
            with self._news:
                if not self._closed:
                    self._news.wait(_TICK_S)

    def _step(self) -> None:
        guard = self._leadership.guard
        if guard is None:
            return
        if self._doubtful or guard.revision != self._term:
            self._read(new_term=guard.revision != self._term)
            self._term, self._doubtful = guard.revision, False
        draft = self._next()
        if draft is not None:
            self._commit(draft, guard)

    def _read(self, *, new_term: bool) -> None:
        """Learn the registry's placement; a new leader gives everybody time to be heard first."""
        entry = self._registry.get(PLACEMENT_KEY)
        self._revision = 0 if entry is None else entry.revision
        if entry is not None:
            self._publish(unpacked(entry.value))
        if new_term:
            with self._news:
                self._impressions.attendance.expect(self._bulletin.placement, time.monotonic())

    def _next(self) -> Placement | None:
        placement = self._bulletin.placement
        if placement is None:
            return self._first()
        with self._news:
            seen = self._impressions.impression(placement, time.monotonic())
        view = seen.view
        about = (view.alive, view.fresh, view.avoided, seen.reports, seen.calm)
        looked_at = (placement.version, *about)
        if looked_at == self._undecided:
            return None
        draft = policies.decide(placement, seen.view, seen.reports, calm=seen.calm)
        if draft is None:
            self._undecided = looked_at
        return draft

    def _first(self) -> Placement | None:
        """The first placement, when all servers that the run begins with are heard."""
        with self._news:
            now = time.monotonic()
            attendance = self._impressions.attendance
            self._impressions.look(now)
            alive, members = attendance.alive(now), attendance.members()
            newest = attendance.newest_known()
        if not alive.issuperset(range(self._settings.servers)):
            return None
        if newest > 0:
            raise RegistryUnavailable(
                f"The registry is empty, and servers know placement {newest}: it was deleted or is "
                "not that of this run. Nothing is placed anew, for that would lose what they hold."
            )
        view = View(alive=alive, loads=self._buckets.loads, copies=self._settings.copies)
        present = {server: members[server] for server in alive}
        return balance.initial(present, self._buckets.homes, view)

    def _commit(self, draft: Placement, guard: Entry) -> None:
        value = packed(draft)
        revision = self._registry.put(PLACEMENT_KEY, value, expected=self._revision, guard=guard)
        if revision is None:  # another controller has written, or leads
            self._leadership.doubt()
            self._doubtful = True
            return
        self._revision = revision
        self._publish(draft)

    def _publish(self, placement: Placement) -> None:
        self._bulletin.publish(placement)
        with self._news:
            self._impressions.placed(placement, time.monotonic())


def _lives(placement: Placement, server: int, incarnation: str) -> bool:
    member = placement.members.get(server)
    return member is not None and member.incarnation == incarnation


def _is_marked(placement: Placement, server: int, draining: bool) -> bool:
    return server not in placement.members or placement.members[server].draining == draining
