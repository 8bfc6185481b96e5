"""The driver's ear: a thread that hears every role of a run, so that nobody waits for the driver.

It goes on while the driver validates or writes a checkpoint. What is made of what it hears is the
affair of those who keep the roles: `replica_crew.py` and `server_crew.py`.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from manyhands.strategies.downpour_driver.notices import Notices

_LOOK_EVERY_S = 0.2

Hear = Callable[[Any], None]


class Crew(Protocol):
    """Roles of one kind. The coordinator calls with the lock of the notices held."""

    def look(self) -> None:
        """Do what is due by the clock; a few times a second."""
        ...

    def channels(self) -> Mapping[Connection, Hear]:
        """The roles' channels, and who takes the messages of each; None is the channel's end."""
        ...


class Coordinator(threading.Thread):
    """Hears roles and passes on what they say. What a crew raises ends the run."""

    def __init__(self, notices: Notices, crews: Sequence[Crew]) -> None:
        super().__init__(name="coordinator", daemon=True)
        self._notices = notices
        self._crews = crews
        self._closing = False
        self._wake_read, self._wake_write = socket.socketpair()

    def run(self) -> None:
        while not self._closing:
            try:
                self._look()
            except BaseException as error:  # the thread's main loop: the session raises it
                self._notices.fail(error)
                time.sleep(_LOOK_EVERY_S)

    def close(self) -> None:
        """Hear nobody any more; may be called twice."""
        if not self._closing:
            self._closing = True
            self._wake_write.send(b".")
        if self.is_alive():
            self.join()
        self._wake_read.close()
        self._wake_write.close()

    def _look(self) -> None:
        changed = self._notices.changed
        heard: dict[Connection, Hear] = {}
        with changed:
            for crew in self._crews:
                crew.look()
                heard.update(crew.channels())
        for ready in wait([*heard, self._wake_read], _LOOK_EVERY_S):
            if not isinstance(ready, Connection):
                continue  # woken to close
            message = _take(ready)
            with changed:
                heard[ready](message)
                changed.notify_all()


def _take(channel: Connection) -> Any | None:
    try:
        return channel.recv()
    except (EOFError, OSError):
        return None
