"""Our parameter server with a durable store behind it, as a contestant: the same with and without.

Server and client have all cores, as in a run on one machine, and every core has a lane: whatever
write-back takes is taken from updates. Writing begins with a turn and ends with it; what is left to
write then is written before anybody else's turn.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contestants.node import Node
from benchmarks.contestants.node_peers import Slice
from benchmarks.contestants.node_roles import Holding, NodeServer
from benchmarks.harness.crew import Crew
from benchmarks.harness.machine import cores
from manyhands import optim
from manyhands.optim.native import rule_spec
from manyhands.parameter_server.persistence import Persistence, StoreReport, WriteBack
from manyhands.parameter_server.shard_map import ParameterSpec, make_shard_map

ROWS, COLUMNS = 64, 4096  # of a chunk: 1 MB
RULE = rule_spec(optim.SGD(lr=0.1))


@dataclass(frozen=True, kw_only=True)
class Model(Holding):
    """A matrix of so many chunks, held by one server."""

    rows: int = ROWS
    columns: int = COLUMNS
    model_chunks: int = 64

    @property
    def chunks(self) -> int:
        return self.model_chunks


class WritingServer(NodeServer):
    """The server's process: a job for a crew."""

    def __init__(self, rank: int, size: int, cores: Iterable[int]) -> None:
        super().__init__(rank, size, cores)
        self._writing: Persistence | None = None

    def open(self, holding: Model) -> Any:
        address = super().open(holding)
        shape = (holding.chunks * holding.rows, holding.columns)
        self._shards = make_shard_map([ParameterSpec("weight", shape)], servers=1, lanes=1)
        assert [c.rows for c in self._shards.chunks] == [holding.rows] * holding.chunks
        return address

    def write_back(self, settings: WriteBack) -> None:
        """Begin to write what moves."""
        everything = range(len(self._shards.chunks))
        assert self.chunk_server is not None
        self._writing = Persistence(
            self.chunk_server, self._shards, [RULE], settings, served=lambda: everything
        )
        self._writing.start()

    def stop_writing(self) -> StoreReport:
        """What was written in this turn, before the rest of it is."""
        assert self._writing is not None
        report = self._writing.report
        self._writing.close()
        return report


class WritingNode(Node):
    """A server and a client, idle unless measured."""

    def __init__(self, chunks: int, folder: Path, every_s: float) -> None:
        super().__init__(together=True)
        self._server = Crew("server", WritingServer, 1, sorted(os.sched_getaffinity(0)))
        lanes = max(n for n in range(1, cores() + 1) if chunks % n == 0)
        self._model = Model(model_chunks=chunks, lanes=lanes, same_machine=True)
        self._settings = WriteBack(directory=folder, every_s=every_s)
        self.reports: list[StoreReport] = []
        self.updates = 0

    def __enter__(self) -> WritingNode:
        super().__enter__()
        self.hold_model()
        return self

    def hold_model(self) -> None:
        address = self._ask(self._server, "open", self._model)
        self._ask(self._client, "connect", address, self._model)

    def push_without(self, seconds: float) -> float:
        """Updates per second with nothing written."""
        return self.push(16, seconds).per_second

    def push_with(self, seconds: float) -> float:
        """Updates per second while what moves is written back."""
        shutil.rmtree(self._settings.directory, ignore_errors=True)
        self._ask(self._server, "write_back", self._settings)
        found: Slice = self.push(16, seconds)
        self.reports.append(self._ask(self._server, "stop_writing"))
        self.updates += found.operations
        return found.per_second

    @staticmethod
    def _ask(crew: Crew, method: str, *arguments: Any) -> Any:
        crew.tell(method, *arguments)
        return crew.answers()[0]
