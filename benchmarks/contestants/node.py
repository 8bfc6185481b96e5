"""Our parameter server as a contestant: a server's process and a client's, told what to hold."""

from __future__ import annotations

import os
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from benchmarks.contestants.node_peers import CLIENT_CORE, FLOAT_BYTES, SERVER_CORE, Cell, Slice
from benchmarks.contestants.node_roles import Holding, NodeClient, NodeServer
from benchmarks.harness.crew import Crew


class Node:
    """A server and a client of ours, idle unless measured. A context manager that ends both.

    By default one end on each of two cores; `together` lets both have all cores. What else a
    `Holding` has is passed on to it.
    """

    def __init__(self, *, together: bool = False, **holding: Any) -> None:
        every = sorted(os.sched_getaffinity(0))
        server, client = (every, every) if together else ([SERVER_CORE], [CLIENT_CORE])
        self._server = Crew("server", NodeServer, 1, server)
        self._client = Crew("client", NodeClient, 1, client)
        self._options = holding
        self._holding: Holding | None = None

    def __enter__(self) -> Node:
        self._ends = ExitStack()
        try:
            for crew in (self._server, self._client):
                self._ends.enter_context(crew)
            for crew in (self._server, self._client):
                crew.answers()
        except BaseException:
            self._ends.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.close()

    def hold(self, rows: int, columns: int) -> None:
        """Have the server hold chunks of this shape."""
        holding = Holding(rows=rows, columns=columns, **self._options)
        if holding == self._holding:
            return
        self._holding = holding
        address = _ask(self._server, "open", holding)
        _ask(self._client, "connect", address, holding)

    def measure(self, cell: Cell, seconds: float) -> Slice:
        self.hold(1, cell.bytes // FLOAT_BYTES)
        found: Slice = _ask(self._client, "run", cell.operation, cell.window, seconds)
        return found

    def push(self, window: int, seconds: float) -> Slice:
        """Push deltas of what it holds."""
        found: Slice = _ask(self._client, "run", "push", window, seconds)
        return found

    def push_factors(self, seconds: float) -> Slice:
        """Push factors of what it holds."""
        found: Slice = _ask(self._client, "run_factors", seconds)
        return found


def _ask(crew: Crew, method: str, *arguments: Any) -> Any:
    crew.tell(method, *arguments)
    return crew.answers()[0]
