"""The fan-out of a run's events to everyone who reads them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from types import TracebackType

from manyhands.telemetry.events import Event, Sink

_log = logging.getLogger(__name__)


class EventStream:
    """Hands each event to every sink, in the order the sinks were given. Itself a sink.

    A sink that fails is reported once, closed and left out from then on: a full disk or a broken
    pipe on the side of the records never stops the training. Not thread-safe.
    """

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self._sinks = list(sinks)

    def handle(self, event: Event) -> None:
        for sink in tuple(self._sinks):
            try:
                sink.handle(event)
            except Exception as error:  # whatever went wrong in a sink is not the training's fault
                self._drop(sink, error)

    def close(self) -> None:
        """Close every sink that is left, once."""
        sinks, self._sinks = self._sinks, []
        for sink in sinks:
            _close(sink)

    def __enter__(self) -> EventStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _drop(self, sink: Sink, error: Exception) -> None:
        self._sinks.remove(sink)
        _close(sink)
        _report(sink, error)


def _close(sink: Sink) -> None:
    try:
        sink.close()
    except Exception as error:  # the others must be closed all the same
        _report(sink, error)


def _report(sink: Sink, error: Exception) -> None:
    _log.warning(
        "%s failed and is left out for the rest of the run: %s: %s",
        type(sink).__name__,
        type(error).__name__,
        error,
        exc_info=_log.isEnabledFor(logging.DEBUG),
    )
