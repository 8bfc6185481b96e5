"""The fan-out: everyone gets everything, and a sink that fails stops nobody."""

from __future__ import annotations

import logging

import pytest

from manyhands.telemetry.events import Event, Note
from manyhands.telemetry.stream import EventStream


class Recorder:
    def __init__(self, fail_on: str = "", fail_closing: bool = False) -> None:
        self.seen: list[Event] = []
        self.closed = 0
        self._fail_on = fail_on
        self._fail_closing = fail_closing

    def handle(self, event: Event) -> None:
        if isinstance(event, Note) and event.message == self._fail_on:
            raise OSError("disk full")
        self.seen.append(event)

    def close(self) -> None:
        self.closed += 1
        if self._fail_closing:
            raise OSError("disk still full")


def test_every_sink_gets_every_event_and_is_closed_once() -> None:
    sinks = [Recorder(), Recorder()]
    events = [Note(message="a"), Note(message="b")]
    with EventStream(sinks) as stream:
        for event in events:
            stream.handle(event)
        stream.close()
    assert [sink.seen for sink in sinks] == [events, events]
    assert [sink.closed for sink in sinks] == [1, 1]


def test_a_failing_sink_is_reported_once_closed_and_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing, healthy = Recorder(fail_on="b"), Recorder()
    with caplog.at_level(logging.WARNING), EventStream([failing, healthy]) as stream:
        for message in "abbc":
            stream.handle(Note(message=message))
    assert [event.message for event in healthy.seen] == ["a", "b", "b", "c"]  # type: ignore[union-attr]
    assert len(failing.seen) == 1
    assert (failing.closed, healthy.closed) == (1, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "Recorder failed and is left out for the rest of the run: OSError: disk full"
    ]


def test_a_sink_that_fails_closing_does_not_keep_the_others_open() -> None:
    failing, healthy = Recorder(fail_closing=True), Recorder()
    EventStream([failing, healthy]).close()
    assert (failing.closed, healthy.closed) == (1, 1)


def test_an_interrupt_passes_and_closes_the_sinks() -> None:
    class Interrupting(Recorder):
        def handle(self, event: Event) -> None:
            raise KeyboardInterrupt

    sink = Interrupting()
    with pytest.raises(KeyboardInterrupt), EventStream([sink]) as stream:
        stream.handle(Note(message=""))
    assert sink.closed == 1
