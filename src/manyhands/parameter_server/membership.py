"""A server's standing with the controller: heartbeats out, placements in.

Adam, section 3.3.3. The heartbeat is a call over a connection of its own, the server's only door to
the administration (section 3.3.4); its end tells the controller sooner than silence would. A
controller that is away stops nobody: the server goes on with the placement it has and keeps
calling.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from manyhands.errors import ManyhandsError, ProtocolError, StaleRoute
from manyhands.parameter_server.mirrors import News
from manyhands.parameter_server.placement import Member, Placement
from manyhands.transport.calls import Caller

logger = logging.getLogger(__name__)

HEARTBEAT_S = 0.1
# Long: to hang up on a controller that is only slow would look to it like our end.
_ANSWER_S = 3.0


class Membership:
    """Calls the controller every `HEARTBEAT_S`, and at once when there is news.

    `news` is asked before every call; `take` gets each placement that comes. Both are called by
    the thread that this starts. `wake` and `cut` may be called by any. `over` is set when the
    controller says that another process has taken this one's number, and when a placement could
    not be carried out: the process should end then, and another be started.
    """

    def __init__(
        self,
        caller: Caller,
        member: Member,
        *,
        news: Callable[[], News],
        take: Callable[[Placement], None],
    ) -> None:
        self._caller = caller
        self._member = member
        self._news = news
        self._take = take
        self.over = threading.Event()
        self._woken = threading.Event()
        self._closed = threading.Event()
        self._cut = threading.Event()
        self._away_since: float | None = None
        self._thread = threading.Thread(target=self._beat_on, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Call now: there is something that the controller should hear."""
        self._woken.set()

    def cut(self, on: bool) -> None:
        """For faults: don't call, until told otherwise; the connection stays, silent."""
        (self._cut.set if on else self._cut.clear)()

    def close(self) -> None:
        """Call no more, and hang up."""
        self._closed.set()
        self._woken.set()
        self._caller.close()
        if self._thread.is_alive():
            self._thread.join()

    def _beat_on(self) -> None:
        try:
            while not self._closed.is_set() and not self.over.is_set():
                self._woken.clear()
                if not self._cut.is_set():
                    self._beat()
                self._woken.wait(HEARTBEAT_S)
        except Exception:  # the thread's main loop: a server that can't obey must not linger
            logger.exception("A placement could not be carried out")
            self.over.set()

    def _beat(self) -> None:
        try:
            answer = self._caller.call("heartbeat", _ANSWER_S, **self._said())
            placement = _placement_in(answer)
        except StaleRoute as error:
            logger.error("%s", error)
            self.over.set()
            return
        except ManyhandsError as error:
            self._is_away(error)
            return
        self._is_back()
        if placement is not None:
            self._take(placement)

    def _said(self) -> dict[str, Any]:
        news = self._news()
        member = asdict(self._member)
        del member["draining"]  # the controller's to say
        return {
            **member,
            "known": news.known,
            "in_step": [[i.bucket, i.server, i.since, i.lease] for i in news.in_step],
            "suspects": list(news.suspects),
            "progress": {str(bucket): updates for bucket, updates in news.progress.items()},
        }

    def _is_away(self, error: Exception) -> None:
        if self._away_since is None and not self._closed.is_set():
            self._away_since = time.monotonic()
            logger.info("The controller does not answer; serving goes on. %s", error)

    def _is_back(self) -> None:
        if self._away_since is not None:
            away_s = time.monotonic() - self._away_since
            logger.info("The controller answers again after %.1f s.", away_s)
            self._away_since = None


def _placement_in(answer: object) -> Placement | None:
    if not isinstance(answer, dict) or answer.keys() != {"placement"}:
        raise ProtocolError("A heartbeat is answered with a placement, or null for none.")
    found = answer["placement"]
    return None if found is None else Placement.from_json(found)
