"""What encryption costs: 1 MB frames and 4 KB round trips through TLS, against plain TCP.

Two processes on loopback. `tunnel` is what the data plane uses off loopback (two pump threads at
each end, `transport/tunnel.py`); `ssl` is Python's own TLS socket, which only Python could read
from, as a measure of what the tunnel itself adds; `plain` is TCP as on loopback. Streams are
acknowledged every 16 frames. Time
of the processor counts both ends.
"""

from __future__ import annotations

import argparse
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.crew import Crew
from benchmarks.harness.report import picture, print_table, with_spread
from benchmarks.harness.rounds import Rounds, alternate, calls_per_second, progress
from manyhands.messages import Hello, Welcome
from manyhands.transport.certificates import RunCertificates
from manyhands.transport.connection import greet, tune
from manyhands.transport.endpoint import Endpoint
from manyhands.transport.listener import Listener, listen
from manyhands.transport.tls import client_context, server_context

WAYS = ("plain", "tunnel", "ssl")
TOKEN = "00" * 16
FRAME_BYTES = 1 << 20
WINDOW = 16
STREAM_GB = WINDOW * FRAME_BYTES / 1e9
PING_BYTES = 4 << 10
HOST = "127.0.0.1"


class Peer:
    """The far end, in a process of its own: swallows streams and returns pings on three doors."""

    def __init__(self, rank: int, size: int, certificates: RunCertificates) -> None:
        del rank, size
        plain = listen(HOST, token=TOKEN)
        tunnel = listen(HOST, token=TOKEN, credentials=certificates.server, tls=True)
        self._ssl = socket.create_server((HOST, 0))
        self._context = server_context(certificates.server, HOST)
        self._endpoints = {
            "plain": plain.endpoint,
            "tunnel": tunnel.endpoint,
            "ssl": Endpoint(HOST, self._ssl.getsockname()[1]),
        }
        for listener in (plain, tunnel):
            listener.start()
            in_thread(self._welcome_all, listener)
        in_thread(self._accept_ssl)

    def endpoints(self) -> dict[str, Endpoint]:
        return self._endpoints

    def cpu_s(self) -> float:
        return time.process_time()

    def _welcome_all(self, listener: Listener) -> None:
        for arrival in listener.arrivals():
            fd = arrival.welcome(Welcome(lanes=1, map_version=1))
            in_thread(serve, socket.socket(fileno=fd), arrival.hello.purpose)

    def _accept_ssl(self) -> None:
        while True:
            sock, _ = self._ssl.accept()
            tune(sock)
            secured = self._context.wrap_socket(sock, server_side=True)
            purpose = secured.recv(16).decode()
            in_thread(serve, secured, purpose)


def in_thread(target: Callable[..., object], *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()


def serve(sock: socket.socket, purpose: str) -> None:
    size = FRAME_BYTES * WINDOW if purpose == "stream" else PING_BYTES
    buffer = memoryview(bytearray(min(size, FRAME_BYTES)))
    while receive(sock, buffer, size):
        sock.sendall(b"x" if purpose == "stream" else buffer)


def receive(sock: socket.socket, buffer: memoryview, count: int) -> bool:
    """Read this many bytes through the buffer; False at the end of the connection."""
    while count:
        read = sock.recv_into(buffer[: min(count, len(buffer))])
        if not read:
            return False
        count -= read
    return True


def stream(sock: socket.socket) -> Callable[[], object]:
    frame, answer = bytes(FRAME_BYTES), memoryview(bytearray(1))

    def call() -> None:
        for _ in range(WINDOW):
            sock.sendall(frame)
        receive(sock, answer, 1)

    return call


def ping(sock: socket.socket) -> Callable[[], object]:
    frame, answer = bytes(PING_BYTES), memoryview(bytearray(PING_BYTES))

    def call() -> None:
        sock.sendall(frame)
        receive(sock, answer, PING_BYTES)

    return call


def connected(
    way: str, purpose: str, endpoint: Endpoint, certificates: RunCertificates
) -> socket.socket:
    if way == "ssl":
        sock = socket.create_connection((endpoint.host, endpoint.port))
        tune(sock)
        context = client_context(certificates.client, HOST)
        secured = context.wrap_socket(sock, server_hostname="server.manyhands")
        secured.sendall(purpose.encode())
        return secured
    hello = Hello(token=TOKEN, client=1, lane=0, purpose=purpose)
    return socket.socket(fileno=greet(endpoint, hello, credentials=certificates.client).fd)


@dataclass
class Processor:
    """Time of the processor that each way took at both ends, and the calls made in it."""

    crew: Crew
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WAYS, 0.0))
    calls: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WAYS, 0.0))

    def spent_s(self) -> float:
        self.crew.tell("cpu_s")
        return time.process_time() + self.crew.answers()[0]

    def per_call_s(self, way: str) -> float:
        return self.seconds[way] / self.calls[way]


@dataclass(frozen=True)
class Measured:
    """Calls per second of every way, and what they cost the processor."""

    rounds: Rounds
    cpu_s: dict[str, float]


def measure(purpose: str, *, rounds: int, seconds: float) -> Measured:
    certificates = RunCertificates.make()
    make = stream if purpose == "stream" else ping
    with ExitStack() as stack:
        crew = stack.enter_context(Crew("peer", Peer, 1, certificates))
        crew.answers()
        crew.tell("endpoints")
        endpoints = crew.answers()[0]
        processor = Processor(crew)

        def turn(way: str) -> Callable[[], float]:
            sock = connected(way, purpose, endpoints[way], certificates)
            call = make(stack.enter_context(sock))
            call()

            def measured() -> float:
                before = processor.spent_s()
                rate = calls_per_second(call, seconds=seconds)
                processor.seconds[way] += processor.spent_s() - before
                processor.calls[way] += rate * seconds
                return rate

            return measured

        result = alternate({way: turn(way) for way in WAYS}, rounds=rounds)
        return Measured(result, {way: processor.per_call_s(way) for way in WAYS})


def row(way: str, streams: Measured, pings: Measured) -> list[str]:
    return [
        way,
        f"{streams.rounds.rate(way).median * STREAM_GB:.2f}",
        with_spread(streams.rounds.ratio(way, "plain"), ".2f"),
        f"{streams.cpu_s[way] / STREAM_GB:.2f}",
        f"{1e6 / pings.rounds.rate(way).median:.0f}",
        with_spread(pings.rounds.ratio("plain", way), ".2f"),
        f"{pings.cpu_s[way] * 1e6:.0f}",
    ]


def figures(way: str, streams: Measured, pings: Measured) -> dict[str, Any]:
    return {
        "way": way,
        "stream_gb_per_s": round(streams.rounds.rate(way).median * STREAM_GB, 3),
        "stream_of_plain": streams.rounds.ratio(way, "plain").figures(),
        "stream_cpu_s_per_gb": round(streams.cpu_s[way] / STREAM_GB, 3),
        "round_trip_us": round(1e6 / pings.rounds.rate(way).median, 1),
        "round_trip_times_plain": pings.rounds.ratio("plain", way).figures(),
        "round_trip_cpu_us": round(pings.cpu_s[way] * 1e6, 1),
    }


def draw(streams: Measured, pings: Measured) -> None:
    with picture("tls_cost", 2) as (left, right):
        rates = [streams.rounds.rate(way).median * STREAM_GB for way in WAYS]
        left.bar(WAYS, rates)
        left.set(title="1 MB frames", ylabel="GB/s")
        right.bar(WAYS, [1e6 / pings.rounds.rate(way).median for way in WAYS])
        right.set(title="4 KB round trip", ylabel="microseconds")


def run(options: argparse.Namespace) -> dict[str, Any]:
    rounds, seconds = (5, 0.4) if options.quick else (11, 1.0)
    progress("1 MB frames ...")
    streams = measure("stream", rounds=rounds, seconds=seconds)
    progress("4 KB round trips ...")
    pings = measure("ping", rounds=rounds, seconds=seconds)
    print_table(
        "TLS on loopback, two processes",
        ["way", "GB/s", "of plain", "CPU s/GB", "4 KB there and back us", "times plain", "CPU us"],
        [row(way, streams, pings) for way in WAYS],
    )
    draw(streams, pings)
    return {"figures": [figures(way, streams, pings) for way in WAYS]}
