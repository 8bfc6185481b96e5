"""What the driver's threads tell the session: events, and the error that ends the run.

One lock guards all that the driver knows of its roles; whoever waits for something to change in
there waits on `changed`.
"""

from __future__ import annotations

import threading

from manyhands.telemetry.events import Event


class Notices:
    """Events and the first error, until the session takes them. Thread-safe."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._events: list[Event] = []
        self._error: BaseException | None = None

    def tell(self, event: Event) -> None:
        """Keep an event for the stream."""
        with self.changed:
            self._events.append(event)

    def take(self) -> list[Event]:
        """What happened since the last call."""
        with self.changed:
            events, self._events = self._events, []
            return events

    def fail(self, error: BaseException) -> None:
        """Keep an error that ends the run; the first one counts."""
        with self.changed:
            self._error = self._error or error
            self.changed.notify_all()

    @property
    def has_failed(self) -> bool:
        return self._error is not None

    def check(self) -> None:
        """Raise the error that ends the run, if there is one."""
        with self.changed:
            if self._error is not None:
                raise self._error
