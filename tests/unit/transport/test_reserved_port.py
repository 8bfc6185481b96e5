"""A port stays ours while those who listen on it come and go."""

from __future__ import annotations

import socket

import pytest

from manyhands.errors import ConfigError
from manyhands.transport.listener import listen
from manyhands.transport.reserved_port import ReservedPort

TOKEN = "ab" * 16


def test_listeners_follow_one_another_on_a_reserved_port():
    with ReservedPort("127.0.0.1") as port:
        number = port.number
        for _ in range(3):
            with listen("127.0.0.1", number, token=TOKEN) as listener:
                assert listener.endpoint.port == number
                with socket.create_connection(("127.0.0.1", number), timeout=5):
                    pass


def test_nobody_is_given_it_by_chance():
    with ReservedPort("127.0.0.1") as port:
        others = [socket.create_server(("127.0.0.1", 0)) for _ in range(200)]
        try:
            assert port.number not in [other.getsockname()[1] for other in others]
        finally:
            for other in others:
                other.close()


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        ReservedPort("192.0.2.1")
