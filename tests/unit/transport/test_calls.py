"""Calls: answered in JSON, failures told in a sentence, garbage dropped, endings noticed."""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import contextmanager
from typing import Any

import pytest

from manyhands.errors import ConfigError, ProtocolError, ServerUnavailable, StaleRoute
from manyhands.messages import HEADER_BYTES, Header, Kind, frame
from manyhands.transport import calls
from manyhands.transport.calls import Caller, CallPeer, CallServer
from manyhands.transport.certificates import RunCertificates
from manyhands.transport.connection import greet
from manyhands.transport.endpoint import Endpoint
from tests.unit.transport.conftest import TOKEN, hello, wait_until


class Desk:
    """Answers sums, fails in several ways, and knows who is on the line."""

    def __init__(self) -> None:
        self.closed: list[CallPeer] = []
        self.let_go = threading.Event()

    def handle(self, command: str, arguments: dict[str, Any], peer: CallPeer) -> Any:
        if command == "add":
            return {"sum": arguments["a"] + arguments["b"], "peer": peer.number}
        if command == "wait":
            return self.let_go.wait(30)
        if command == "fail":
            raise KeyError("a bug")
        if command == "odd":
            return {"not": {"JSON"}}
        if command == "moved":
            raise StaleRoute("Another one leads.")
        raise ConfigError(f"There is no command {command!r}.")


@contextmanager
def answering(**settings: Any):
    desk = Desk()
    with CallServer(
        settings.pop("host", "127.0.0.1"),
        token=TOKEN,
        handle=desk.handle,
        on_close=desk.closed.append,
        **settings,
    ) as server:
        yield desk, server
        desk.let_go.set()


def test_calls_are_answered_over_one_connection():
    with answering() as (_, server), Caller(server.endpoint, token=TOKEN) as caller:
        answers = [caller.call("add", 20, a=number, b=2) for number in range(5)]
        assert answers == [{"sum": number + 2, "peer": 0} for number in range(5)]


def test_a_large_answer_arrives_whole():
    text = "x" * (5 << 20)
    with answering() as (_, server), Caller(server.endpoint, token=TOKEN) as caller:
        assert caller.call("add", 60, a=text, b="y")["sum"] == text + "y"


def test_what_the_handler_raises_reaches_the_caller_and_the_connection_lives_on(caplog):
    with answering() as (_, server), Caller(server.endpoint, token=TOKEN) as caller:
        with pytest.raises(ConfigError, match="There is no command 'fly'"):
            caller.call("fly", 20)
        with pytest.raises(StaleRoute, match=r"Another one leads\."):
            caller.call("moved", 20)
        with caplog.at_level(logging.ERROR):
            for bug in ("fail", "odd"):
                with pytest.raises(ProtocolError, match=f"The call '{bug}' failed"):
                    caller.call(bug, 20)
        assert caller.call("add", 20, a=1, b=1) == {"sum": 2, "peer": 0}


def test_callers_do_not_wait_for_each_other():
    with answering() as (desk, server), Caller(server.endpoint, token=TOKEN) as patient:
        waiting = threading.Thread(target=patient.call, args=("wait", 30))
        waiting.start()
        with Caller(server.endpoint, token=TOKEN) as quick:
            assert quick.call("add", 20, a=1, b=1)["sum"] == 2
        assert waiting.is_alive()
        desk.let_go.set()
        waiting.join(20)


def test_a_silent_server_is_given_up_and_called_again_over_a_new_connection():
    with answering() as (_, server), Caller(server.endpoint, token=TOKEN) as caller:
        with pytest.raises(ServerUnavailable, match=r"did not answer the call 'wait' within 0\.1"):
            caller.call("wait", 0.1)
        assert caller.call("add", 20, a=1, b=1) == {"sum": 2, "peer": 1}


def test_the_server_is_told_of_every_ending():
    with answering() as (desk, server):
        for purpose in ("first", "second"):
            with Caller(server.endpoint, token=TOKEN, purpose=purpose) as caller:
                caller.call("add", 20, a=1, b=1)
        wait_until(lambda: len(desk.closed) == 2, what="both endings told")
        assert {peer.purpose for peer in desk.closed} == {"first", "second"}


def test_a_server_that_is_started_again_on_its_port_is_found_by_the_same_caller():
    with answering() as (_, server):
        endpoint = server.endpoint
        caller = Caller(endpoint, token=TOKEN)
        caller.call("add", 20, a=1, b=1)
    with caller:
        with pytest.raises(ServerUnavailable):
            caller.call("add", 20, a=1, b=1)
        with pytest.raises(ServerUnavailable, match="No server listens"):
            caller.call("add", 20, a=1, b=1)
        with answering(port=endpoint.port):
            assert caller.call("add", 20, a=2, b=1)["sum"] == 3


def test_closing_ends_a_call_that_is_under_way():
    with answering() as (_, server):
        caller = Caller(server.endpoint, token=TOKEN)
        caller.call("add", 20, a=1, b=1)
        caught: list[Exception] = []

        def wait() -> None:
            try:
                caller.call("wait", 60)
            except ServerUnavailable as error:
                caught.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: caller._turn.locked(), what="the call under way")
        caller.close()
        thread.join(20)
        assert len(caught) == 1
        with pytest.raises(ServerUnavailable, match="closing"):
            caller.call("add", 20, a=1, b=1)


@pytest.mark.parametrize(
    "said",
    [
        frame(Kind.PULL, b""),
        frame(Kind.CALL, b"[1]"),
        frame(Kind.CALL, b"[" * 50_000),
        frame(Kind.CALL, b'{"command": 1, "arguments": {}}'),
        frame(Kind.CALL, b'{"command": "add"}'),
        frame(Kind.CALL, b'{"command": "add", "arguments": {}, "more": 1}'),
        frame(Kind.CALL, b"\xff\xfe"),
        Header(kind=Kind.CALL, payload_bytes=calls.MAX_CALL_BYTES + 1).pack(),
        b"GET / HTTP/1.1\r\n".ljust(HEADER_BYTES),
    ],
)
def test_garbage_ends_its_connection_and_no_other(said, caplog):
    with (
        answering() as (_, server),
        Caller(server.endpoint, token=TOKEN) as caller,
        caplog.at_level(logging.WARNING),
    ):
        greeting = greet(server.endpoint, hello())
        with socket.socket(fileno=greeting.fd) as sock:
            sock.settimeout(20)
            sock.sendall(said)
            assert sock.recv(1) == b""
        wait_until(lambda: "Hung up on the caller" in caplog.text, what="the warning")
        assert caller.call("add", 20, a=1, b=1)["sum"] == 2


def test_half_a_call_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(calls, "_DEADLINE_S", 0.2)
    with answering() as (_, server):
        greeting = greet(server.endpoint, hello())
        with socket.socket(fileno=greeting.fd) as sock:
            sock.settimeout(20)
            sock.sendall(frame(Kind.CALL, b"{}")[:-1])
            assert sock.recv(1) == b""


def test_an_answer_to_another_call_is_not_believed():
    def wrong(command: str, arguments: dict[str, Any], peer: CallPeer) -> Any:
        return None

    with CallServer("127.0.0.1", token=TOKEN, handle=wrong) as server:
        caller = Caller(server.endpoint, token=TOKEN)
        caller.call("x", 20)
        caller._sock.sendall(frame(Kind.CALL, b'{"command":"y","arguments":{}}', sequence=99))
        with pytest.raises(ProtocolError, match="Call 2 was not answered"):
            caller.call("z", 20)
        assert caller.call("z", 20) is None
        caller.close()


def test_a_stranger_is_turned_away(caplog):
    with (
        answering() as (_, server),
        caplog.at_level(logging.WARNING),
        Caller(server.endpoint, token="cd" * 16) as caller,
        pytest.raises(ProtocolError, match="token is not that of this run"),
    ):
        caller.call("add", 20, a=1, b=1)


def test_calls_through_tls_from_an_address_of_choice():
    certificates = RunCertificates.make()
    with (
        answering(credentials=certificates.server, tls=True, host="127.0.0.2") as (_, server),
        Caller(
            server.endpoint,
            token=TOKEN,
            credentials=certificates.client,
            bind_host="127.0.0.3",
        ) as caller,
    ):
        assert caller.call("add", 20, a=1, b=1)["sum"] == 2


def test_the_connection_comes_from_the_address_of_choice():
    seen: list[CallPeer] = []
    with (
        CallServer("127.0.0.2", token=TOKEN, handle=lambda c, a, peer: seen.append(peer)) as server,
        Caller(server.endpoint, token=TOKEN, bind_host="127.0.0.3") as caller,
    ):
        caller.call("hello", 20)
    assert seen[0].address.startswith("127.0.0.3:")


def test_a_connection_that_leads_back_to_itself_is_none(monkeypatch):
    """As TCP makes it when the port of a dead server is drawn for the caller's own end."""

    def to_itself(*_: object) -> socket.socket:
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        sock.connect(sock.getsockname())
        return sock

    monkeypatch.setattr(socket, "create_connection", to_itself)
    with (
        Caller(Endpoint("127.0.0.1", 4000), token=TOKEN) as caller,
        pytest.raises(ServerUnavailable, match="No server listens"),
    ):
        caller.call("add", 20, a=1, b=1)


def test_closing_the_server_hangs_up_on_callers():
    desk = Desk()
    server = CallServer("127.0.0.1", token=TOKEN, handle=desk.handle)
    server.start()
    with Caller(server.endpoint, token=TOKEN) as caller:
        caller.call("add", 20, a=1, b=1)
        began = time.monotonic()
        server.close()
        with pytest.raises(ServerUnavailable):
            caller.call("add", 60, a=1, b=1)
        assert time.monotonic() - began < 50
