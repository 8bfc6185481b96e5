"""What a parameter server is measured against: a plain socket, ps-lite, and memory itself."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import torch

from benchmarks.harness.native_program import Program, Unavailable, build
from benchmarks.harness.rounds import calls_per_second
from manyhands import kernels

NATIVE = Path(__file__).parent / "native"
MOST_CHUNKS, MOST_BYTES = 16, 64 << 20  # of one size, visited in turn; as in native/driver.h
FLOAT_BYTES = 4
_EVERY_CORE = sorted(os.sched_getaffinity(0))
SERVER_CORE, CLIENT_CORE = _EVERY_CORE[0], _EVERY_CORE[-1]
STARTS_TRIED = 5  # ps-lite now and then crashes while its three processes find each other


def chunks_of(size_bytes: int) -> int:
    """How many chunks of this size there are."""
    return max(1, min(MOST_CHUNKS, MOST_BYTES // size_bytes))


@dataclass(frozen=True)
class Cell:
    """One line of the table: what is done, with how many bytes, how many under way at once."""

    operation: str  # "push", "pull" or "both"
    bytes: int
    window: int


@dataclass(frozen=True)
class Slice:
    """What came of one turn."""

    operations: int
    elapsed_s: float
    p50_us: float  # of single operations; only with a window of 1

    @property
    def per_second(self) -> float:
        return self.operations / self.elapsed_s


class NativePeer:
    """Programs that take orders as `native/driver.h` says. Stopped unless measured."""

    def __init__(self) -> None:
        self._ends = ExitStack()
        self._programs: list[Program] = []

    def _start(self, program: Program) -> Program:
        self._programs.append(self._ends.enter_context(program))
        return program

    @contextmanager
    def _awake(self) -> Iterator[None]:
        for program in self._programs:
            program.resume()
        try:
            yield
        finally:
            for program in self._programs:
                program.pause()

    def measure(self, cell: Cell, seconds: float) -> Slice:
        client = self._programs[-1]
        with self._awake():
            client.tell(f"{cell.operation} {cell.bytes} {cell.window} {seconds}")
            operations, elapsed_s, p50_us = client.line(expected_s=seconds).split()
        return Slice(int(operations), float(elapsed_s), float(p50_us))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.close()


class RawSocket(NativePeer):
    """The same bytes through a TCP socket, with nothing done to them."""

    def __enter__(self) -> RawSocket:
        program = str(build(NATIVE / "raw_socket.cpp"))
        server = self._start(Program([program, "server"], core=SERVER_CORE))
        client = self._start(Program([program, "client", server.line()], core=CLIENT_CORE))
        client.line()
        return self


class PsLite(NativePeer):
    """ps-lite over TCP: scheduler, one server that adds in place, one worker.

    `checkout` is a built copy of ps-lite: `include/` and `build/libps.a`. Needs libzmq.
    """

    def __init__(self, checkout: Path) -> None:
        super().__init__()
        self._checkout = checkout

    def __enter__(self) -> PsLite:
        library = self._checkout / "build" / "libps.a"
        if not library.exists():
            raise Unavailable(f"{library} does not exist: build ps-lite there first")
        include = [f"-I{self._checkout / folder}" for folder in ("include", "src")]
        arguments = [*include, str(library), "-lzmq"]
        program = build(NATIVE / "ps_lite_peer.cpp", arguments=arguments, depends=[library])
        for tried in range(1, STARTS_TRIED + 1):
            try:
                self._start_roles(program)
                return self
            except Unavailable:
                self._ends.close()
                self._programs.clear()
                if tried == STARTS_TRIED:
                    raise
        return self

    def _start_roles(self, program: Path) -> None:
        common = {
            "DMLC_NUM_WORKER": "1",
            "DMLC_NUM_SERVER": "1",
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(_free_port()),
            "DMLC_NODE_HOST": "127.0.0.1",
            "BYTEPS_ZMQ_NTHREADS": "1",  # of a fork that would start four
        }
        cores = {"scheduler": None, "server": SERVER_CORE, "worker": CLIENT_CORE}
        for role, core in cores.items():
            environment = {**common, "DMLC_ROLE": role}
            self._start(Program([str(program)], core=core, environment=environment))
        self._programs[-1].line()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Memory:
    """`w += g` where it lies, one thread: what no server can pass."""

    def __init__(self) -> None:
        self._bytes = 0

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        self._chunks = []

    def _prepare(self, size_bytes: int) -> None:
        if self._bytes == size_bytes:
            return
        self._bytes = size_bytes
        floats = size_bytes // FLOAT_BYTES
        self._chunks = [
            (torch.zeros(floats), torch.ones(floats)) for _ in range(chunks_of(size_bytes))
        ]

    def measure(self, cell: Cell, seconds: float) -> Slice:
        """A push adds, a pull copies, `both` does both."""
        self._prepare(cell.bytes)
        weights = [weight.numpy() for weight, _ in self._chunks]
        changes = [change.numpy() for _, change in self._chunks]
        rule = kernels.Rule("sgd")

        def add() -> None:
            kernels.update(rule, 1e-3, 1, 1.0, weights, changes, [[]] * len(weights))

        def copy() -> None:
            for weight, change in zip(weights, changes, strict=True):
                np.copyto(change, weight)

        calls = {"push": (add,), "pull": (copy,), "both": (add, copy)}[cell.operation]
        began = time.perf_counter()
        rate = calls_per_second(lambda: [call() for call in calls], seconds=seconds)
        elapsed_s = time.perf_counter() - began
        operations = round(rate * elapsed_s * len(weights))
        return Slice(operations, elapsed_s, 1e6 * elapsed_s / max(operations, 1))
