"""Heartbeats: what is said, what is taken, and that a controller may come and go."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import Any

from manyhands.errors import ServerUnavailable, StaleRoute
from manyhands.parameter_server.membership import Membership
from manyhands.parameter_server.mirrors import InStep, News
from manyhands.parameter_server.placement import BucketPlace, Member, Placement
from manyhands.transport.calls import Caller, CallPeer, CallServer
from manyhands.transport.endpoint import Endpoint
from tests.unit.transport.conftest import TOKEN, wait_until

DOOR = Endpoint("127.0.0.1", 4000)
US = Member(3, "abc", DOOR, Endpoint("127.0.0.2", 4001), "here")
NEWS = News(7, (InStep(17, 2, 5, 4),), (1,), {17: 99})
PLACEMENT = Placement(8, {3: US}, {17: BucketPlace(3, 4, (1,))})


class Controller:
    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.answer: Any = {"placement": None}
        self.closed: list[CallPeer] = []

    def handle(self, command: str, arguments: dict[str, Any], peer: CallPeer) -> Any:
        assert command == "heartbeat"
        self.heard.append(arguments)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    @contextmanager
    def listening(self, port: int = 0):
        with CallServer(
            "127.0.0.1", port, token=TOKEN, handle=self.handle, on_close=self.closed.append
        ) as server:
            yield server.endpoint


@contextmanager
def beating(endpoint: Endpoint):
    taken: list[Placement] = []
    caller = Caller(endpoint, token=TOKEN)
    membership = Membership(caller, US, news=lambda: NEWS, take=taken.append)
    membership.start()
    try:
        yield membership, taken
    finally:
        membership.close()
    assert "heartbeat" not in [thread.name for thread in threading.enumerate()]


def test_a_heartbeat_says_who_we_are_and_what_is_new():
    controller = Controller()
    with controller.listening() as endpoint, beating(endpoint) as (_, taken):
        wait_until(lambda: len(controller.heard) >= 3, what="heartbeats")
        assert controller.heard[0] == {
            "server": 3,
            "incarnation": "abc",
            "endpoint": {"host": "127.0.0.1", "port": 4000, "unix": None, "tls": False},
            "replication": {"host": "127.0.0.2", "port": 4001, "unix": None, "tls": False},
            "host": "here",
            "known": 7,
            "in_step": [[17, 2, 5, 4]],
            "suspects": [1],
            "progress": {"17": 99},
        }
        assert taken == []
        controller.answer = {"placement": PLACEMENT.to_json()}
        wait_until(lambda: taken, what="the placement taken")
        assert taken[0] == PLACEMENT
    wait_until(lambda: controller.closed, what="the controller hears of the end")


def test_a_controller_that_goes_and_comes_again_is_found(caplog):
    first, second = Controller(), Controller()
    with caplog.at_level(logging.INFO):
        with first.listening() as endpoint:
            membership = beating(endpoint)
            _, taken = membership.__enter__()
            wait_until(lambda: first.heard, what="a heartbeat")
        wait_until(lambda: "does not answer" in caplog.text, what="its absence noted")
        second.answer = {"placement": PLACEMENT.to_json()}
        with second.listening(endpoint.port):
            wait_until(lambda: taken, what="a placement of the new controller")
            wait_until(lambda: "answers again" in caplog.text, what="its return noted")
            membership.__exit__(None, None, None)
    assert caplog.text.count("does not answer") == 1


def test_a_controller_that_declines_or_talks_nonsense_is_asked_again(caplog):
    controller = Controller()
    with (
        caplog.at_level(logging.WARNING),
        controller.listening() as endpoint,
        beating(endpoint) as (_, taken),
    ):
        standing_by = ServerUnavailable("Another one leads.")
        for nonsense in (standing_by, None, {"placement": {}}, {"x": 1}):
            controller.answer = nonsense
            before = len(controller.heard)
            wait_until(lambda n=before: len(controller.heard) > n + 1, what="more heartbeats")
        assert taken == []
        controller.answer = {"placement": PLACEMENT.to_json()}
        wait_until(lambda: taken, what="the placement taken")


def test_a_process_that_was_replaced_is_told_so_and_calls_no_more(caplog):
    controller = Controller()
    with controller.listening() as endpoint, beating(endpoint) as (membership, _):
        wait_until(lambda: controller.heard, what="a heartbeat")
        controller.answer = StaleRoute("This process of it must end.")
        assert membership.over.wait(20)
        wait_until(
            lambda: "heartbeat" not in [thread.name for thread in threading.enumerate()],
            what="no more heartbeats",
        )
    assert "must end" in caplog.text


def test_a_placement_that_can_not_be_carried_out_ends_the_process(caplog):
    def fail(placement: Placement) -> None:
        raise ValueError("no such chunk")

    controller = Controller()
    controller.answer = {"placement": PLACEMENT.to_json()}
    with controller.listening() as endpoint:
        membership = Membership(Caller(endpoint, token=TOKEN), US, news=lambda: NEWS, take=fail)
        membership.start()
        assert membership.over.wait(20)
        membership.close()
    assert "no such chunk" in caplog.text


def test_a_server_that_is_cut_off_is_silent_and_keeps_its_connection():
    controller = Controller()
    with controller.listening() as endpoint, beating(endpoint) as (membership, _):
        wait_until(lambda: controller.heard, what="a heartbeat")
        membership.cut(True)
        membership.wake()
        quiet = threading.Event()
        wait_until(lambda: not _grows(controller.heard, quiet), what="silence")
        assert controller.closed == []
        membership.cut(False)
        before = len(controller.heard)
        wait_until(lambda: len(controller.heard) > before, what="heartbeats again")


def _grows(heard: list[dict[str, Any]], pause: threading.Event) -> bool:
    before = len(heard)
    pause.wait(0.5)
    return len(heard) > before
