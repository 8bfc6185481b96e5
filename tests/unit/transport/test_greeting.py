"""Clients and servers meet: over TCP, on one machine, through TLS; strangers don't get in."""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import time

import pytest
import torch

from manyhands.errors import ConfigError, ProtocolError, ServerUnavailable
from manyhands.messages import (
    MAX_HELLO_BYTES,
    PROTOCOL_VERSION,
    Header,
    Kind,
    Refusal,
    Welcome,
    frame,
)
from manyhands.transport import listener as listener_module
from manyhands.transport import unix_socket
from manyhands.transport.arena import Arena
from manyhands.transport.connection import greet
from manyhands.transport.endpoint import Endpoint
from manyhands.transport.listener import listen
from tests.unit.transport.conftest import TOKEN, hello, serving, simply_welcome, wait_until


def talk(ours: socket.socket, theirs: socket.socket) -> None:
    """A few bytes each way."""
    for a, b in ((ours, theirs), (theirs, ours)):
        a.sendall(b"ping")
        b.settimeout(10)
        assert b.recv(4, socket.MSG_WAITALL) == b"ping"


def read_all(sock: socket.socket) -> bytes:
    sock.settimeout(20)
    data = b""
    try:
        while piece := sock.recv(65536):
            data += piece
    except ConnectionResetError:
        return data
    return data


def stranger(endpoint: Endpoint, said: bytes) -> bytes:
    """What is answered to these bytes before the connection ends."""
    with socket.create_connection((endpoint.host, endpoint.port)) as sock:
        sock.sendall(said)
        return read_all(sock)


@pytest.mark.parametrize("same_machine", [False, True])
def test_a_client_is_welcomed_and_the_connection_is_its_own(same_machine):
    with serving() as server:
        greeting = greet(server.endpoint, hello(purpose="push"), same_machine=same_machine)
        assert greeting.welcome == Welcome(lanes=2, map_version=1)
        assert greeting.fds == ()
        assert os.get_blocking(greeting.fd)
        with socket.socket(fileno=greeting.fd) as sock:
            talk(sock, server.connection())
        wait_until(lambda: server.arrivals, what="the arrival noted")
        assert server.arrivals[0].hello == hello(purpose="push")
        assert server.arrivals[0].same_machine is same_machine
        assert server.listener.strangers == 0


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="Linux only")
def test_within_a_machine_nothing_paces_a_sender():
    with serving() as server, socket.socket(fileno=greet(server.endpoint, hello()).fd) as client:
        for end in (client, server.connection()):
            chosen = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            assert chosen.rstrip(b"\0") == b"reno"


def test_what_follows_the_greeting_is_left_in_the_connection():
    data = frame(Kind.HELLO, hello().encode()) + b"the first frame"
    with serving() as server:
        address = (server.endpoint.host, server.endpoint.port)
        with socket.create_connection(address) as sock:
            sock.sendall(data)
            assert server.connection().recv(100) == b"the first frame"


def test_memory_is_shared_both_ways():
    mine, theirs = (Arena.with_room_for([torch.zeros(100)]) for _ in range(2))
    seen: list[Arena] = []

    def share(arrival):
        seen.append(Arena(arrival.fds[0], arrival.hello.shared_bytes))
        welcome = Welcome(lanes=1, map_version=1, memory_bytes=theirs.size_bytes)
        return arrival.welcome(welcome, [theirs.fd])

    placed = mine.place(torch.full((100,), 3.0))
    answer = theirs.place(torch.full((100,), 4.0))
    with serving(answer=share) as server:
        greeting = greet(
            server.endpoint,
            hello(shared_bytes=mine.size_bytes),
            same_machine=True,
            fds=[mine.fd],
        )
    assert seen[0].view(0, torch.float32, [100], [1]).sum() == placed.sum()
    theirs_here = Arena(greeting.fds[0], greeting.welcome.memory_bytes)
    assert theirs_here.view(0, torch.float32, [100], [1]).sum() == answer.sum()
    os.close(greeting.fd)
    for arena in (mine, theirs, theirs_here, seen[0]):
        arena.close()


def test_memory_that_could_shrink_is_refused_and_no_descriptor_is_kept():
    fd = os.memfd_create("unsealed")
    os.truncate(fd, 4096)
    with serving() as server:
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(ProtocolError, match="not sealed against shrinking"):
            greet(server.endpoint, hello(shared_bytes=4096), same_machine=True, fds=[fd])
        with pytest.raises(ProtocolError, match=r"0 bytes .* were announced and 1 desc"):
            greet(server.endpoint, hello(), same_machine=True, fds=[fd])
        with pytest.raises(ProtocolError, match=r"5000 bytes .* were announced and 0 desc"):
            greet(server.endpoint, hello(shared_bytes=5000), same_machine=True)
        with unix_socket.connect_unix(server.endpoint.unix, 10.0) as sock:
            socket.send_fds(sock, [Header(kind=Kind.HELLO, payload_bytes=2**31).pack()], [fd])
            assert read_all(sock) != b""
        wait_until(
            lambda: len(os.listdir("/proc/self/fd")) <= before, what="descriptors closed again"
        )
    os.close(fd)


def test_another_token_is_refused_and_costs_one_line(caplog):
    with serving() as server, caplog.at_level(logging.WARNING):
        with pytest.raises(ProtocolError, match="token is not that of this run") as caught:
            greet(server.endpoint, hello(token="cd" * 16))
        assert caught.value.refusal == Refusal.STRANGER
        wait_until(lambda: "token is not that" in caplog.text, what="the stranger logged")
        assert server.listener.strangers == 1
        assert len(caplog.records) == 1
        assert server.arrivals == []


def test_a_flood_of_strangers_is_counted_and_logged_in_few_lines(caplog):
    with serving() as server, caplog.at_level(logging.WARNING):
        for _ in range(50):
            stranger(server.endpoint, b"GET / HTTP/1.1\r\nHost: x\r\n" + bytes(100))
        wait_until(lambda: server.listener.strangers == 50, what="strangers counted")
    assert len(caplog.records) < 25


def test_another_version_is_named_with_ours_on_both_sides(caplog):
    theirs = struct.pack("<IHBB", 0x5350484D, 9, 1, 0).ljust(64, b"\0")
    with serving() as server, caplog.at_level(logging.WARNING):
        answer = stranger(server.endpoint, theirs)
        wait_until(lambda: "version 9" in caplog.text, what="the stranger logged")
    assert struct.unpack_from("<H", answer, 4) == (9,)  # in a header that the peer can read
    sentence = answer[64:].decode()
    assert "version 9" in sentence
    assert f"version {PROTOCOL_VERSION}" in sentence
    assert f"version {PROTOCOL_VERSION}" in caplog.text


def test_a_client_names_both_versions_when_the_server_is_of_another():
    with socket.create_server(("127.0.0.1", 0)) as door:
        host, port = door.getsockname()

        def answer() -> None:
            sock, _ = door.accept()
            with sock:
                sock.sendall(Header(kind=Kind.WELCOME, version=99).pack())

        threading.Thread(target=answer).start()
        both = rf"version 99 .* version {PROTOCOL_VERSION}\b"
        with pytest.raises(ProtocolError, match=both) as caught:
            greet(Endpoint(host, port), hello())
    assert caught.value.refusal == Refusal.VERSION


@pytest.mark.parametrize(
    ("said", "refusal"),
    [
        (Header(kind=Kind.PULL).pack(), Refusal.MALFORMED),
        (Header(kind=Kind.HELLO, payload_bytes=2**32 - 1).pack(), Refusal.TOO_LARGE),
        (Header(kind=Kind.HELLO, payload_bytes=MAX_HELLO_BYTES + 1).pack(), Refusal.TOO_LARGE),
        (frame(Kind.HELLO, b"{"), Refusal.MALFORMED),
        (frame(Kind.HELLO, b"[" * 60000), Refusal.MALFORMED),
    ],
)
def test_a_wrong_greeting_is_answered_and_the_connection_ends(said, refusal):
    with serving() as server:
        answer = Header.unpack(stranger(server.endpoint, said)[:64])
        assert (answer.kind, answer.count) == (Kind.REFUSED, refusal)
        wait_until(lambda: server.listener.strangers == 1, what="the stranger counted")


def test_silent_strangers_hold_nobody_up_and_are_dropped(monkeypatch):
    monkeypatch.setattr(listener_module, "_DEADLINE_S", 1.0)
    with serving() as server:
        address = (server.endpoint.host, server.endpoint.port)
        silent = [socket.create_connection(address) for _ in range(30)]
        for sock in silent[::2]:
            sock.sendall(b"MH")
        greeting = greet(server.endpoint, hello())
        assert server.listener.strangers == 0  # they were still waiting
        os.close(greeting.fd)
        for sock in silent:
            assert read_all(sock) == b""
            sock.close()
        wait_until(lambda: server.listener.strangers == 30, what="strangers counted")


def test_a_stranger_that_dribbles_bytes_gains_no_time(monkeypatch):
    monkeypatch.setattr(listener_module, "_DEADLINE_S", 0.5)
    with serving() as server:
        address = (server.endpoint.host, server.endpoint.port)
        with socket.create_connection(address) as sock:
            end = time.monotonic() + 60
            while server.listener.strangers == 0:
                assert time.monotonic() < end
                try:
                    sock.sendall(b"M")
                except OSError:
                    break
                time.sleep(0.05)
        wait_until(lambda: server.listener.strangers == 1, what="the stranger counted")


def test_more_strangers_than_places_only_delay(monkeypatch):
    monkeypatch.setattr(listener_module, "_DEADLINE_S", 0.5)
    with serving() as server:
        address = (server.endpoint.host, server.endpoint.port)
        silent = [socket.create_connection(address) for _ in range(80)]
        os.close(greet(server.endpoint, hello()).fd)
        for sock in silent:
            sock.close()


def test_closing_ends_arrivals_while_strangers_wait():
    with serving() as server:
        waiting = socket.create_connection((server.endpoint.host, server.endpoint.port))
        server.listener.close()
        server.listener.close()
        server.thread.join(10)
        assert not server.thread.is_alive()
        waiting.close()


def test_a_local_peer_of_another_user_is_turned_away(monkeypatch):
    with serving() as server:
        monkeypatch.setattr(unix_socket.os, "geteuid", lambda: 12345)
        with pytest.raises(ProtocolError, match="belongs to user"):
            greet(server.endpoint, hello(), same_machine=True)
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(f"\0{server.endpoint.unix}")
        assert read_all(sock) == b""
        sock.close()
        wait_until(lambda: server.listener.strangers >= 1, what="the stranger counted")


def test_a_server_may_refuse_with_a_sentence():
    def refuse(arrival):
        arrival.refuse(Refusal.WRONG_LANE, "There are 2 lanes; you asked for 5.")

    with (
        serving(answer=refuse) as server,
        pytest.raises(ProtocolError, match="refused: There are 2 lanes; you asked for 5") as caught,
    ):
        greet(server.endpoint, hello(lane=5))
    assert caught.value.refusal == Refusal.WRONG_LANE


def test_a_peer_that_left_before_its_welcome_is_the_servers_oserror():
    outcome: list[object] = []

    def too_late(arrival):
        sock = arrival._sock
        sock.settimeout(10)
        assert sock.recv(1) == b""
        try:
            for _ in range(2):  # the first is answered with a reset
                simply_welcome(arrival)
        except OSError as error:
            outcome.append(error)

    with serving(answer=too_late) as server:
        with socket.create_connection((server.endpoint.host, server.endpoint.port)) as sock:
            sock.sendall(frame(Kind.HELLO, hello().encode()))
        wait_until(lambda: server.arrivals, what="the arrival handled")
    assert outcome


def test_the_port_in_use_and_addresses_of_others_are_answered_in_a_sentence():
    with listen("127.0.0.1", token=TOKEN) as first:
        port = first.endpoint.port
        with pytest.raises(ConfigError, match=rf"127.0.0.1:{port}: the port is in use; name ano"):
            listen("127.0.0.1", port, token=TOKEN)
    with pytest.raises(ConfigError, match="name one address of this machine"):
        listen("0.0.0.0", token=TOKEN)
    with pytest.raises(ConfigError, match="no credentials: make some"):
        listen("192.0.2.1", token=TOKEN)


def test_an_address_that_this_machine_does_not_have(certificates):
    with pytest.raises(ConfigError, match="does not have the address"):
        listen("192.0.2.1", token=TOKEN, credentials=certificates.server)


def test_nobody_listening_is_answered_in_a_sentence():
    with listen("127.0.0.1", token=TOKEN) as listener:
        endpoint = listener.endpoint
    for same_machine in (False, True):
        with pytest.raises(ServerUnavailable, match=rf"No server listens at {endpoint}"):
            greet(endpoint, hello(), same_machine=same_machine)


def test_a_server_that_says_nothing_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as door:
        endpoint = Endpoint(*door.getsockname())
        with pytest.raises(ServerUnavailable, match=rf"{endpoint} did not answer within 0.2 s"):
            greet(endpoint, hello(), timeout_s=0.2)


def test_a_local_server_with_a_full_queue_is_waited_for():
    door, name = unix_socket.listen_unix(0)
    with door, unix_socket.connect_unix(name, 5.0):  # the one place in the queue is taken
        endpoint = Endpoint("127.0.0.1", 1, unix=name)
        with pytest.raises(ServerUnavailable, match=r"did not answer within 0\.2 s"):
            greet(endpoint, hello(), same_machine=True, timeout_s=0.2)
        threading.Timer(0.1, lambda: door.accept()[0].close()).start()
        unix_socket.connect_unix(name, 10.0).close()


def test_a_server_that_hangs_up_is_named():
    with socket.create_server(("127.0.0.1", 0)) as door:
        endpoint = Endpoint(*door.getsockname())
        threading.Thread(target=lambda: door.accept()[0].close()).start()
        with pytest.raises(ServerUnavailable, match=rf"{endpoint} closed the connection"):
            greet(endpoint, hello())


def test_ways_that_can_not_be_right():
    with pytest.raises(ConfigError, match="no local door"):
        greet(Endpoint("127.0.0.1", 1), hello(), same_machine=True)
    with pytest.raises(ConfigError, match=r"192.0.2.1 is not a loopback address"):
        greet(Endpoint("192.0.2.1", 1), hello())
    with pytest.raises(ConfigError, match=r"'no.such.invalid' is not known here"):
        greet(Endpoint("no.such.invalid", 1, tls=True), hello(), credentials=_some())
    with pytest.raises(ValueError, match="same machine only"):
        greet(Endpoint("127.0.0.1", 1), hello(), fds=[0])


def _some():
    from manyhands.transport.certificates import RunCertificates

    return RunCertificates.make().client


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6_loopback():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with serving("::1") as server:
        assert str(server.endpoint).startswith("[::1]:")
        os.close(greet(server.endpoint, hello()).fd)
