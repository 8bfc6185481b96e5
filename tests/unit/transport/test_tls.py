"""TLS: certificates of one run, refused ones, and a tunnel that carries every byte."""

from __future__ import annotations

import os
import pickle
import random
import socket
import ssl
import threading
import time
from contextlib import suppress

import pytest

from manyhands.errors import ProtocolError, ServerUnavailable
from manyhands.transport.certificates import RunCertificates
from manyhands.transport.connection import greet
from manyhands.transport.tls import TlsStream, client_context, server_context
from manyhands.transport.tunnel import tunnel
from tests.unit.transport.conftest import hello, serving, wait_until


def tunnel_threads() -> int:
    return sum(thread.name.startswith("tunnel") for thread in threading.enumerate())


@pytest.fixture
def pair(certificates):
    """Two plain ends with a TLS connection between them."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        near = socket.create_connection(door.getsockname())
        far, _ = door.accept()
    streams = (
        TlsStream(near, client_context(certificates.client, "x"), server_side=False),
        TlsStream(far, server_context(certificates.server, "x"), server_side=True),
    )
    deadline = time.monotonic() + 60
    other = threading.Thread(target=streams[1].shake_hands, args=(deadline,))
    other.start()
    streams[0].shake_hands(deadline)
    other.join()
    ends = tuple(map(tunnel, streams))
    yield ends
    for end in ends:
        end.close()
    wait_until(lambda: tunnel_threads() == 0, what="tunnels ended")


def read_exactly(sock: socket.socket, count: int) -> bytes:
    sock.settimeout(30)
    data = bytearray()
    while len(data) < count:
        piece = sock.recv(min(1 << 20, count - len(data)))
        assert piece, f"ended after {len(data)} of {count} bytes"
        data += piece
    return bytes(data)


def test_a_connection_through_tls_is_welcomed(certificates):
    with serving(credentials=certificates.server, tls=True) as server:
        assert server.endpoint.encrypted
        greeting = greet(server.endpoint, hello(), credentials=certificates.client)
        with socket.socket(fileno=greeting.fd) as sock:
            sock.sendall(b"secret")
            assert read_exactly(server.connection(), 6) == b"secret"
    wait_until(lambda: tunnel_threads() == 0, what="tunnels ended")


def test_every_byte_arrives_in_both_directions_at_once(pair):
    near, far = pair
    sizes = [1, 63, 16 << 10, (16 << 10) + 1, 256 << 10, 3_000_001, 5]
    data = [random.Random(size).randbytes(size) for size in sizes]
    everything = b"".join(data)
    senders = [threading.Thread(target=lambda s=s: [s.sendall(d) for d in data]) for s in pair]
    received: list[bytes] = [b"", b""]

    def read(number: int, sock: socket.socket) -> None:
        received[number] = read_exactly(sock, len(everything))

    readers = [threading.Thread(target=read, args=(n, s)) for n, s in enumerate((near, far))]
    for thread in (*readers, *senders):
        thread.start()
    for thread in (*readers, *senders):
        thread.join(60)
    assert received == [everything, everything]


def test_a_direction_that_nobody_reads_does_not_stop_the_other(pair):
    near, far = pair
    near.setblocking(False)
    sent = 0
    idle_since = time.monotonic()
    while time.monotonic() - idle_since < 0.5:  # until every buffer on the way is full
        try:
            sent += near.send(bytes(1 << 20))
            idle_since = time.monotonic()
        except BlockingIOError:
            time.sleep(0.01)
    near.setblocking(True)
    far.sendall(b"x" * 100_000)
    assert read_exactly(near, 100_000) == b"x" * 100_000
    assert sent < 64 << 20  # back-pressure: the tunnel keeps no more than its buffers
    assert read_exactly(far, sent) == bytes(sent)


@pytest.mark.parametrize("closer", [0, 1])
def test_what_was_sent_before_the_end_arrives_and_then_the_end(pair, closer):
    leaving, staying = pair[closer], pair[1 - closer]
    staying.sendall(b"y" * 100_000)  # unread by the one that leaves
    leaving.sendall(b"x" * 1_000_000)
    leaving.close()
    assert read_exactly(staying, 1_000_000) == b"x" * 1_000_000
    assert staying.recv(1) == b""


def test_last_words_arrive_while_the_other_still_talks(pair):
    leaving, staying = pair

    def talk() -> None:
        with suppress(OSError):
            while True:
                staying.sendall(bytes(100_000))

    talking = threading.Thread(target=talk, daemon=True)
    talking.start()
    read_exactly(leaving, 1_000_000)
    leaving.sendall(b"x" * 1_000_000)
    leaving.close()
    assert read_exactly(staying, 1_000_000) == b"x" * 1_000_000
    assert staying.recv(1) == b""
    talking.join(10)
    assert not talking.is_alive()


def test_a_peer_that_vanishes_without_goodbye_ends_the_tunnel(certificates):
    with serving(credentials=certificates.server, tls=True) as server:
        address = (server.endpoint.host, server.endpoint.port)
        sock = socket.create_connection(address)
        stream = TlsStream(sock, client_context(certificates.client, "x"), server_side=False)
        stream.shake_hands(time.monotonic() + 10)
        sock.close()
        wait_until(lambda: server.listener.strangers == 1, what="the stranger counted")
        wait_until(lambda: tunnel_threads() == 0, what="tunnels ended")


@pytest.mark.parametrize("who", ["other run", "a server's certificate", "none"])
def test_a_client_without_a_certificate_of_the_run_gets_nowhere(certificates, who):
    context = {
        "other run": lambda: client_context(RunCertificates.make().client, "x"),
        "a server's certificate": lambda: client_context(certificates.server, "x"),
        "none": lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
    }[who]()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with serving(credentials=certificates.server, tls=True) as server:
        address = (server.endpoint.host, server.endpoint.port)
        with (
            socket.create_connection(address) as sock,
            suppress(OSError),
            context.wrap_socket(sock) as secured,
        ):
            secured.sendall(b"MHPS" + bytes(60))
            assert secured.recv(1) == b""
        wait_until(lambda: server.listener.strangers == 1, what="the stranger counted")
        assert server.arrivals == []
    assert tunnel_threads() == 0


def test_a_client_of_another_run_is_told_so(certificates):
    other = RunCertificates.make()
    with serving(credentials=certificates.server, tls=True) as server:
        with pytest.raises(ProtocolError, match="no certificate of this run"):
            greet(server.endpoint, hello(), credentials=other.client)
        # Trusting the server is not enough: it must trust us.
        mixed = type(other.client)(
            certificates.client.authority, other.client.certificate, other.client.key
        )
        with pytest.raises(ServerUnavailable, match="of another run"):
            greet(server.endpoint, hello(), credentials=mixed)


def test_a_client_can_not_pose_as_a_server(certificates):
    with (
        serving(credentials=certificates.client, tls=True) as server,
        pytest.raises(ProtocolError, match="no certificate of this run"),
    ):
        greet(server.endpoint, hello(), credentials=certificates.client)


def test_plain_bytes_at_an_encrypted_door_are_a_stranger(certificates):
    with serving(credentials=certificates.server, tls=True) as server:
        plain = type(server.endpoint)(server.endpoint.host, server.endpoint.port)
        with pytest.raises((ProtocolError, ServerUnavailable)):
            greet(plain, hello())
        wait_until(lambda: server.listener.strangers == 1, what="the stranger counted")


def test_older_tls_is_not_spoken(certificates):
    context = client_context(certificates.client, "x")
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with serving(credentials=certificates.server, tls=True) as server:
        address = (server.endpoint.host, server.endpoint.port)
        with socket.create_connection(address) as sock, pytest.raises(ssl.SSLError):
            context.wrap_socket(sock, server_hostname="server.manyhands")


def test_keys_are_not_printed_nor_left_on_disk(certificates, tmp_path, monkeypatch):
    assert "PRIVATE" not in repr(certificates)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    client_context(certificates.client, "x")
    assert os.listdir(tmp_path) == []


def test_credentials_travel_to_the_processes_of_the_run(certificates):
    assert pickle.loads(pickle.dumps(certificates)) == certificates
