"""The two processes of a parameter server under measurement, as jobs for crews.

                 server process                        client process
    TCP          accept, adopt(fd, lane)       <--     connect, Link(fd): a connection for each lane
    TLS          the same behind a tunnel      <--     the same behind a tunnel
    same         the same over a unix socket;  <--     its memory (pushes go by reference)
    machine      its own memory goes back      -->     pulls are copied out of the server's memory

This is the native data plane itself: nobody is greeted, and chunks are of any size.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.contestants.node_peers import FLOAT_BYTES, Slice, chunks_of
from manyhands import kernels
from manyhands.transport.certificates import RunCertificates
from manyhands.transport.connection import tune
from manyhands.transport.tls import TlsStream, client_context, server_context
from manyhands.transport.tunnel import tunnel

CLIENT = 7
HANDSHAKE_S = 10.0
RATE = 1e-3
WINDOW = 16
CALL_BYTES = 64 << 20  # what one call with a window moves, at most 64 times round
FACTOR_SAMPLES = 32  # vectors in a push of factors: a batch


@dataclass(frozen=True)
class Holding:
    """What a server holds: matrices of `rows` x `columns`, dealt out over the lanes."""

    rows: int
    columns: int
    lanes: int = 1
    same_machine: bool = False
    certificates: RunCertificates | None = None  # for TLS
    refuse_nonfinite: bool = False

    @property
    def floats(self) -> int:
        return self.rows * self.columns

    @property
    def chunks(self) -> int:
        return chunks_of(self.floats * FLOAT_BYTES)

    def chunks_of(self, lane: int) -> range:
        """Contiguous, so that a lane's chunks can be one span of factors."""
        share = self.chunks // self.lanes
        return range(lane * share, (lane + 1) * share)


class NodeServer:
    """The server's process: a job for a crew."""

    def __init__(self, rank: int, size: int, cores: Iterable[int]) -> None:
        os.sched_setaffinity(0, cores)
        self._ends = ExitStack()
        self.chunk_server: kernels.ChunkServer | None = None

    def open(self, holding: Holding) -> Any:
        """Start serving; returns where to connect."""
        self.shut()
        server = kernels.ChunkServer(
            lanes=holding.lanes, refuse_nonfinite=holding.refuse_nonfinite, pin=True
        )
        for lane in range(holding.lanes):
            for chunk in holding.chunks_of(lane):
                server.add_chunk(
                    chunk,
                    lane=lane,
                    parameter=0,
                    first_row=chunk * holding.rows,
                    rows=holding.rows,
                    row_floats=holding.columns,
                    rule=kernels.Rule("sgd"),
                    state_starts=[],
                )
        server.start()
        self._ends.callback(server.stop)
        self.chunk_server = server
        listener, address = self._listen(holding.same_machine)
        threading.Thread(target=_accept, args=(server, listener, holding), daemon=True).start()
        return address

    def _listen(self, same_machine: bool) -> tuple[socket.socket, Any]:
        if not same_machine:
            listener = socket.create_server(("127.0.0.1", 0))
            return self._ends.enter_context(listener), listener.getsockname()
        folder = self._ends.enter_context(TemporaryDirectory())
        listener = self._ends.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(Path(folder) / "server"))
        listener.listen()
        return listener, listener.getsockname()

    def shut(self) -> None:
        self._ends.close()


def _accept(server: Any, listener: socket.socket, holding: Holding) -> None:
    """One connection for each lane, in order."""
    for lane in range(holding.lanes):
        connection, _ = listener.accept()
        shared: dict[str, int] = {}
        if holding.same_machine:
            message, fds, _, _ = socket.recv_fds(connection, 64, 1)
            places = [server.place_of(chunk) for chunk in range(holding.chunks)]
            answer = json.dumps([server.memory_bytes, places]).encode()
            socket.send_fds(connection, [answer], [server.memory_fd])
            shared = {"shared_fd": fds[0], "shared_bytes": int(message)}
        else:
            connection = _prepared(connection, holding.certificates, server_side=True)
        server.adopt(connection.detach(), lane=lane, client=CLIENT, admin=True, **shared)


def _prepared(
    connection: socket.socket, certificates: RunCertificates | None, *, server_side: bool
) -> socket.socket:
    """The TCP connection itself, or the plain end of a tunnel through it."""
    tune(connection)
    if certificates is None:
        return connection
    if server_side:
        context = server_context(certificates.server, "the server")
    else:
        context = client_context(certificates.client, "the client")
    stream = TlsStream(connection, context, server_side=server_side)
    stream.shake_hands(time.monotonic() + HANDSHAKE_S)
    return tunnel(stream)


@dataclass
class Batch:
    """What one call to a link says: which chunks, and where their values lie."""

    chunks: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    versions: npt.NDArray[np.int64]

    @classmethod
    def of(cls, chunks: Iterable[int], floats: int) -> Batch:
        numbers = np.fromiter(chunks, dtype=np.int64)
        return cls(numbers, numbers * floats, np.full_like(numbers, floats), np.zeros_like(numbers))


class NodeClient:
    """The client's process: a job for a crew. One thread for each lane, as a replica has."""

    def __init__(self, rank: int, size: int, cores: Iterable[int]) -> None:
        os.sched_setaffinity(0, cores)
        self._links: list[Any] = []
        self._sequence = 1
        self._lock = threading.Lock()

    def connect(self, address: Any, holding: Holding) -> None:
        self.disconnect()
        self._holding = holding
        size = holding.chunks * holding.floats
        factors = FACTOR_SAMPLES * (holding.columns + holding.chunks * holding.rows)
        self._memory, self._memory_fd = _shared_memory((2 * size + factors) * FLOAT_BYTES)
        flat = self._memory.view(np.float32)
        flat[:] = 1e-3
        self._values, self._out, self._factors = np.split(flat, [size, 2 * size])
        self._links = [self._link(address) for _ in range(holding.lanes)]
        self._batches = [self._batch(lane) for lane in range(holding.lanes)]
        self._singles = [Batch.of([chunk], holding.floats) for chunk in holding.chunks_of(0)]

    def _batch(self, lane: int) -> Batch:
        """A lane's chunks, so many times round that a call's first and last wait don't matter."""
        chunks = self._holding.chunks_of(lane)
        once = len(chunks) * self._holding.floats * FLOAT_BYTES
        times = max(1, 2 * WINDOW // len(chunks), min(64, CALL_BYTES // once))
        return Batch.of([*chunks] * times, self._holding.floats)

    def _link(self, address: Any) -> Any:
        if not self._holding.same_machine:
            connection = _prepared(
                socket.create_connection(address), self._holding.certificates, server_side=False
            )
            return kernels.Link(connection.detach(), client=CLIENT, window=WINDOW)
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
        size = str(self._memory.nbytes).encode()
        socket.send_fds(connection, [size], [self._memory_fd])
        message, fds, _, _ = socket.recv_fds(connection, 1 << 20, 1)
        memory_bytes, places = json.loads(message)
        link = kernels.Link(
            connection.detach(),
            client=CLIENT,
            window=WINDOW,
            own=self._memory,
            values=np.frombuffer(
                mmap.mmap(fds[0], memory_bytes, prot=mmap.PROT_READ), dtype=np.uint8
            ),
        )
        os.close(fds[0])
        weights, versions = np.array(places, dtype=np.int64).T.copy()
        link.places(np.arange(len(places), dtype=np.int64), weights, versions)
        return link

    def disconnect(self) -> None:
        for link in self._links:
            link.close()
        self._links = []

    def run(self, operation: str, window: int, seconds: float) -> Slice:
        """Push, pull or both until the time is over."""
        call = getattr(self, f"_{operation}")
        if window == 1:
            return self._one_at_a_time(call, seconds)
        return self._on_every_lane(
            lambda lane: call(self._links[lane], self._batches[lane]),
            [len(batch.chunks) for batch in self._batches],
            seconds,
        )

    def run_factors(self, seconds: float) -> Slice:
        """Push factors of every lane's span until the time is over; counts chunks."""
        holding = self._holding
        a, d = np.split(self._factors, [FACTOR_SAMPLES * holding.columns])
        spans = [holding.chunks_of(lane) for lane in range(holding.lanes)]
        a = a.reshape(FACTOR_SAMPLES, holding.columns)
        ds = [part.reshape(FACTOR_SAMPLES, -1) for part in np.split(d, holding.lanes)]

        def push(lane: int) -> None:
            self._links[lane].push_factors(
                spans[lane].start,
                a,
                ds[lane],
                rate=RATE,
                steps=1,
                sequence=self._next(1),
                seen=0,
            )

        return self._on_every_lane(push, [len(span) for span in spans], seconds)

    def _one_at_a_time(self, call: Callable[[Any, Batch], None], seconds: float) -> Slice:
        each_s: list[float] = []
        link, clock = self._links[0], time.perf_counter
        began = now = clock()
        while now - began < seconds:
            before = now
            call(link, self._singles[len(each_s) % len(self._singles)])
            now = clock()
            each_s.append(now - before)
        return Slice(len(each_s), now - began, 1e6 * float(np.median(each_s)))

    def _on_every_lane(
        self, call: Callable[[int], None], operations: list[int], seconds: float
    ) -> Slice:
        began = time.perf_counter()
        calls = [0] * len(operations)

        def work(lane: int) -> None:
            while time.perf_counter() - began < seconds:
                call(lane)
                calls[lane] += 1

        threads = [threading.Thread(target=work, args=(lane,)) for lane in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done = sum(c * o for c, o in zip(calls, operations, strict=True))
        return Slice(done, time.perf_counter() - began, 0.0)

    def _next(self, count: int) -> int:
        """The first of so many sequence numbers; lanes may skip some, which is allowed."""
        with self._lock:
            first = self._sequence
            self._sequence += count
        return first

    def _push(self, link: Any, batch: Batch) -> None:
        link.push(
            batch.chunks,
            batch.starts,
            batch.counts,
            self._values,
            rate=RATE,
            steps=1,
            sequence=self._next(len(batch.chunks)),
            versions=batch.versions,
            rising=True,
        )

    def _pull(self, link: Any, batch: Batch) -> None:
        link.pull(batch.chunks, batch.starts, batch.counts, self._out, versions=batch.versions)

    def _both(self, link: Any, batch: Batch) -> None:
        link.push_pull(
            batch.chunks,
            batch.starts,
            batch.counts,
            self._values,
            self._out,
            rate=RATE,
            steps=1,
            sequence=self._next(len(batch.chunks)),
            versions=batch.versions,
            rising=True,
        )


def _shared_memory(size_bytes: int) -> tuple[npt.NDArray[np.uint8], int]:
    fd = os.memfd_create("benchmark", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size_bytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return np.frombuffer(mmap.mmap(fd, size_bytes), dtype=np.uint8), fd
