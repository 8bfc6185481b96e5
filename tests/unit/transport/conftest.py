"""A server that welcomes everybody the listener lets in, in a thread."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from manyhands.messages import Hello, Welcome
from manyhands.transport.certificates import RunCertificates
from manyhands.transport.listener import Arrival, Listener, listen

TOKEN = "ab" * 16


def hello(**changes: object) -> Hello:
    return Hello(**{"token": TOKEN, "client": 7, "lane": 0, **changes})


@pytest.fixture(scope="session")
def certificates() -> RunCertificates:
    return RunCertificates.make()


def wait_until(condition: Callable[[], object], *, what: str, deadline_s: float = 60.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        time.sleep(0.005)


class Server:
    """Welcomes arrivals and keeps their connections, as a parameter server would."""

    def __init__(self, listener: Listener, answer: Callable[[Arrival], int | None]) -> None:
        self.listener = listener
        self.endpoint = listener.endpoint
        self.arrivals: list[Arrival] = []
        self.connections: list[socket.socket] = []
        self._answer = answer
        self.thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        for arrival in self.listener.arrivals():
            fd = self._answer(arrival)
            if fd is not None:
                self.connections.append(socket.socket(fileno=fd))
            self.arrivals.append(arrival)

    def connection(self, number: int = 0) -> socket.socket:
        wait_until(lambda: len(self.connections) > number, what="a connection welcomed")
        return self.connections[number]


def simply_welcome(arrival: Arrival) -> int:
    for fd in arrival.fds:
        os.close(fd)
    return arrival.welcome(Welcome(lanes=2, map_version=1))


@contextmanager
def serving(
    host: str = "127.0.0.1",
    answer: Callable[[Arrival], int | None] = simply_welcome,
    **settings: object,
) -> Iterator[Server]:
    with listen(host, token=TOKEN, **settings) as listener:
        server = Server(listener, answer)
        server.thread.start()
        try:
            yield server
        finally:
            listener.close()
            server.thread.join(10)
            for connection in server.connections:
                connection.close()
    assert not server.thread.is_alive()
