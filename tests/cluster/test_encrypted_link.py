"""Two machines' worth of network namespaces: what crosses the link is encrypted and authenticated.

     namespace a                                namespace b
server role 10.77.x.1   <------- veth ------>   client role 10.77.x.2
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection

import pytest

from manyhands.errors import ConfigError, ManyhandsError
from manyhands.launch.local import start_role
from manyhands.messages import Hello, Welcome
from manyhands.transport import connection
from manyhands.transport.certificates import Credentials, RunCertificates
from manyhands.transport.connection import greet
from manyhands.transport.endpoint import Endpoint
from manyhands.transport.listener import listen

TOKEN = "ab" * 16
MEGABYTE = 1 << 20


class EchoServer:
    """Sends back, through whatever way they come, a megabyte from every client."""

    def __init__(self, host: str, credentials: Credentials | None) -> None:
        self.host = host
        self.credentials = credentials

    def run(self, channel: Connection) -> None:
        with listen(self.host, token=TOKEN, credentials=self.credentials) as listener:
            channel.send(listener.endpoint)
            for arrival in listener.arrivals():
                fd = arrival.welcome(Welcome(lanes=1, map_version=1))
                with socket.socket(fileno=fd) as sock:
                    sock.sendall(_read_megabyte(sock))


class EchoClient:
    def __init__(self, endpoint: Endpoint, credentials: Credentials) -> None:
        self.endpoint = endpoint
        self.credentials = credentials

    def run(self, channel: Connection) -> None:
        hello = Hello(token=TOKEN, client=1, lane=0)
        greeting = greet(self.endpoint, hello, credentials=self.credentials)
        with socket.socket(fileno=greeting.fd) as sock:
            sock.sendall(bytes(MEGABYTE))
            channel.send(_read_megabyte(sock) == bytes(MEGABYTE))
            channel.recv()


class PatientServer:
    """Welcomes one client and waits for a byte that never comes."""

    def __init__(self, host: str, credentials: Credentials) -> None:
        self.host = host
        self.credentials = credentials

    def run(self, channel: Connection) -> None:
        _notice_soon()
        with listen(self.host, token=TOKEN, credentials=self.credentials) as listener:
            channel.send(listener.endpoint)
            arrival = next(iter(listener.arrivals()))
            fd = arrival.welcome(Welcome(lanes=1, map_version=1))
            with socket.socket(fileno=fd) as sock:
                channel.send(_ends_by_itself(sock))


class PatientClient(EchoClient):
    def run(self, channel: Connection) -> None:
        _notice_soon()
        hello = Hello(token=TOKEN, client=1, lane=0)
        greeting = greet(self.endpoint, hello, credentials=self.credentials)
        channel.send("welcomed")
        with socket.socket(fileno=greeting.fd) as sock:
            channel.send(_ends_by_itself(sock))


def _notice_soon() -> None:
    """Let the kernel lose its patience earlier than it would."""
    connection._SILENCE_S = connection._ASK_EVERY_S = connection._WITHOUT_ANSWER_S = 1


def _ends_by_itself(sock: socket.socket) -> bool:
    sock.settimeout(60)
    try:
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def _read_megabyte(sock: socket.socket) -> bytes:
    data = b""
    while len(data) < MEGABYTE:
        piece = sock.recv(MEGABYTE)
        if not piece:
            return data
        data += piece
    return data


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def link() -> Iterator[tuple[str, str]]:
    """Two namespaces with a cable between them; their addresses end in .1 and .2."""
    a, b = (f"mh-{os.getpid()}-{end}" for end in "ab")
    try:
        ip("netns", "add", a)
        ip("netns", "add", b)
        ip("link", "add", "mh0", "netns", a, "type", "veth", "peer", "name", "mh0", "netns", b)
        for number, name in enumerate((a, b), start=1):
            ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", "mh0")
            ip("-n", name, "link", "set", "mh0", "up")
        yield a, b
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("network namespaces can't be made here")
    finally:
        for name in (a, b):
            with suppress(FileNotFoundError):
                subprocess.run(["ip", "netns", "del", name], capture_output=True)


def test_roles_meet_over_an_encrypted_link_and_strangers_do_not(link, capfd):
    a, b = link
    run, other_run = RunCertificates.make(), RunCertificates.make()
    server_task = EchoServer("10.77.0.1", run.server)
    with start_role(server_task, name="server", prefix=("ip", "netns", "exec", a)) as server:
        endpoint = server.receive()
        assert endpoint.encrypted
        assert endpoint.unix is None
        there = ("ip", "netns", "exec", b)
        with start_role(EchoClient(endpoint, run.client), name="client", prefix=there) as client:
            assert client.receive() is True
        stranger_task = EchoClient(endpoint, other_run.client)
        with (
            start_role(stranger_task, name="stranger", prefix=there) as stranger,
            pytest.raises(ManyhandsError, match="certificate of this run"),
        ):
            stranger.receive()
        with start_role(EchoClient(endpoint, run.client), name="client", prefix=there) as client:
            assert client.receive() is True
    assert "[server] Turned away a stranger at 10.77.0.2" in capfd.readouterr().err


def test_both_ends_notice_that_they_were_cut_off_from_each_other(link):
    a, b = link
    run = RunCertificates.make()
    server_task = PatientServer("10.77.0.1", run.server)
    with start_role(server_task, name="server", prefix=("ip", "netns", "exec", a)) as server:
        client_task = PatientClient(server.receive(), run.client)
        with start_role(client_task, name="client", prefix=("ip", "netns", "exec", b)) as client:
            assert client.receive() == "welcomed"
            for name in link:  # packets still arrive, and are nobody's
                ip("-n", name, "address", "flush", "dev", "mh0")
                ip("-n", name, "address", "add", "10.78.0.9/8", "dev", "mh0")
            assert client.receive() is True
            assert server.receive() is True


def test_a_server_without_credentials_does_not_open_on_such_an_address():
    with (
        start_role(EchoServer("10.77.0.1", None), name="server") as server,
        pytest.raises(ConfigError, match=r"10\.77\.0\.1 is not a loopback address"),
    ):
        server.receive()
