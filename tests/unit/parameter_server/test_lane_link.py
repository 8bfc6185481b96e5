"""The retry policy: what is tried again, for how long, and what is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from manyhands import kernels
from manyhands.errors import ProtocolError, ServerUnavailable, StaleRoute
from manyhands.messages import Refusal
from manyhands.parameter_server import lane_link
from manyhands.parameter_server.dialling import Dialling
from manyhands.parameter_server.lane_link import Counters, LaneLink
from manyhands.transport.endpoint import Endpoint


class FakeLink:
    """A connection that counts what passes."""

    def __init__(self) -> None:
        self.pushed_bytes, self.pulled_bytes, self.waited_s = 10, 1, 0.5
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> list[FakeLink]:
    """The connections made, in order."""
    made: list[FakeLink] = []

    def dial(*arguments: object) -> FakeLink:
        made.append(FakeLink())
        return made[-1]

    monkeypatch.setattr(lane_link, "dial", dial)
    return made


def make_link(retry_s: float = 30.0, stopping: threading.Event | None = None) -> LaneLink:
    return LaneLink(
        Endpoint("127.0.0.1", 7),
        0,
        [],
        Dialling(token="", client=1),
        map_version=1,
        retry_s=retry_s,
        stopping=stopping or threading.Event(),
    )


def failing(*errors: Exception) -> Callable[[Any], str]:
    """Work that fails once with each of these and then succeeds."""
    left = list(errors)

    def work(link: object) -> str:
        if left:
            raise left.pop(0)
        return "done"

    return work


def refusal(code: Refusal) -> kernels.Refused:
    error = kernels.Refused("No.")
    error.code = code
    return error


def test_work_that_loses_its_connection_is_done_again_on_another(dialled):
    link = make_link()
    assert link.call(failing(ConnectionResetError(), TimeoutError(), BrokenPipeError())) == "done"
    assert [one.closed for one in dialled] == [True, True, True, False]
    link.close()
    link.close()
    assert link.counters == Counters(40, 4, 2.0, reconnects=3)


def test_a_server_that_stays_away_is_named(dialled):
    link = make_link(retry_s=0.05)
    with pytest.raises(ServerUnavailable, match=r"at 127\.0\.0\.1:7 has not answered for 0\.05 s"):
        link.call(failing(*[ConnectionResetError()] * 1000))
    assert len(dialled) >= 2


def test_a_server_that_can_not_be_reached_is_tried_again(monkeypatch):
    answers = [ServerUnavailable("nobody"), ServerUnavailable("nobody"), FakeLink()]

    def dial(*arguments: object) -> FakeLink:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(lane_link, "dial", dial)
    assert make_link().call(failing()) == "done"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (Refusal.NOT_FINITE, ProtocolError),
        (Refusal.NOT_ALLOWED, ProtocolError),
        (Refusal.UNKNOWN_CHUNK, StaleRoute),
        (Refusal.STALE_LEASE, StaleRoute),
    ],
)
def test_a_refusal_is_not_tried_again(dialled, code, expected):
    link = make_link()
    with pytest.raises(expected, match=r"127\.0\.0\.1:7 refused: No\.") as told:
        link.call(failing(refusal(code)))
    if expected is ProtocolError:
        assert told.value.refusal == code
    assert [one.closed for one in dialled] == [False]


def test_a_refusal_that_closes_the_connection_drops_it(dialled):
    link = make_link()
    with pytest.raises(ProtocolError):
        link.call(failing(refusal(Refusal.TOO_LARGE)))
    assert [one.closed for one in dialled] == [True]


def test_a_mistake_of_ours_is_raised_as_it_is(dialled):
    with pytest.raises(ValueError, match="ours"):
        make_link().call(failing(ValueError("ours")))


def test_stopping_ends_a_wait_between_attempts(dialled):
    stopping = threading.Event()
    link = make_link(retry_s=600.0, stopping=stopping)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            link.call(failing(*[ConnectionResetError()] * 100_000))
        except ServerUnavailable as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    end = time.monotonic() + 30
    while len(dialled) < 4 and time.monotonic() < end:
        time.sleep(0.01)
    stopping.set()
    thread.join(30)
    assert not thread.is_alive()
    assert "closing" in str(errors[0])


def test_a_connection_that_comes_up_while_stopping_is_not_used(monkeypatch):
    stopping = threading.Event()

    def dial(*arguments: object) -> FakeLink:
        stopping.set()
        return FakeLink()

    monkeypatch.setattr(lane_link, "dial", dial)
    with pytest.raises(ServerUnavailable, match="closing"):
        make_link(stopping=stopping).call(failing())


def test_no_two_updates_of_a_lane_have_the_same_sequence(dialled):
    link = make_link()
    first, second, third = (link.take_sequences(count) for count in (3, 1, 5))
    assert (first, second, third) == (1, 4, 5)
