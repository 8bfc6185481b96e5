"""A connection lives once, and any thread may end it, also while it is dialled."""

from __future__ import annotations

import threading

import pytest

from manyhands.errors import ServerUnavailable
from manyhands.parameter_server.client import lane_link
from manyhands.parameter_server.client.dialling import Dialling
from manyhands.parameter_server.client.lane_link import Counters, LaneLink
from manyhands.parameter_server.client.routes import Target
from manyhands.transport.endpoint import Endpoint


class FakeLink:
    """A connection that counts what passes."""

    def __init__(self) -> None:
        self.pushed_bytes, self.pulled_bytes, self.waited_s = 10, 1, 0.5
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


def make_link() -> LaneLink:
    target = Target(0, "", Endpoint("127.0.0.1", 7))
    return LaneLink(target, 0, [], Dialling(token="", client=1), map_version=1)


def test_it_is_dialled_once_when_first_used(monkeypatch):
    dialled: list[FakeLink] = []

    def dial(*arguments: object) -> FakeLink:
        dialled.append(FakeLink())
        return dialled[-1]

    monkeypatch.setattr(lane_link, "dial", dial)
    link = make_link()
    assert link.counters == Counters()
    assert [link.call(lambda native: native) for _ in range(2)] == [dialled[0]] * 2
    assert link.counters == Counters(10, 1, 0.5)
    link.cut()
    link.cut()
    assert dialled[0].closed.is_set()
    assert link.counters == Counters(10, 1, 0.5)


def test_errors_are_passed_on(monkeypatch):
    def dial(*arguments: object) -> FakeLink:
        raise ServerUnavailable("nobody")

    monkeypatch.setattr(lane_link, "dial", dial)
    with pytest.raises(ServerUnavailable, match="nobody"):
        make_link().call(lambda native: native)


def test_cutting_ends_a_dial_that_nobody_answers(monkeypatch):
    begun, answer, late = threading.Event(), threading.Event(), FakeLink()

    def dial(*arguments: object) -> FakeLink:
        begun.set()
        assert answer.wait(30)
        return late

    monkeypatch.setattr(lane_link, "dial", dial)
    link = make_link()
    errors: list[BaseException] = []

    def call() -> None:
        try:
            link.call(lambda native: native)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(30)
    link.cut()
    thread.join(30)
    assert len(errors) == 1
    answer.set()
    assert late.closed.wait(30)  # the answer that came too late is not left open


def test_what_was_cut_before_its_first_call_is_not_dialled(monkeypatch):
    def dial(*arguments: object) -> FakeLink:
        raise AssertionError("nobody may dial")

    monkeypatch.setattr(lane_link, "dial", dial)
    link = make_link()
    link.cut()
    with pytest.raises(OSError, match="cut"):
        link.call(lambda native: native)
