"""Clients that push whole numbers while a test moves their chunks about."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack

import numpy as np

from manyhands.parameter_server.placement import BucketPlace
from manyhands.parameter_server.shard_map import ShardMap
from tests.cluster.conftest import wait_until
from tests.cluster.replicated import ReplicatedServers
from tests.cluster.servers import shared_arrays

# Nothing ends by itself in tests of what ends it.
PATIENT = {"retry_s": 600.0, "timeout_s": 600.0}


def everywhere(
    shards: ShardMap, place: BucketPlace, others: Mapping[int, BucketPlace] | None = None
) -> dict[int, BucketPlace]:
    """All buckets like this, but for those given."""
    return {chunk.bucket: place for chunk in shards.chunks} | dict(others or {})


class GroupPusher:
    """A thread for each group of one client that pushes ones until told to stop, and counts."""

    def __init__(self, running: ReplicatedServers, *, same_machine: bool = False) -> None:
        self._running = running
        self._same_machine = same_machine
        self._stop = threading.Event()
        self._ends = ExitStack()
        self.errors: list[BaseException] = []

    def __enter__(self) -> GroupPusher:
        shards, options = self._running.shards, dict(PATIENT)
        values, outs = self._running.flat(), [self._running.flat() for _ in range(shards.servers)]
        if self._same_machine:
            own, (values,) = self._ends.enter_context(shared_arrays(shards, 1))
            options |= {"same_machine": True, "own": own}
        values[:] = 1
        self.client = self._ends.enter_context(self._running.client(**options))
        self.counts = [0] * shards.servers
        self._threads = [
            threading.Thread(target=self._push, args=(group, values, outs[group]))
            for group in range(shards.servers)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def _push(self, group: int, values: np.ndarray, out: np.ndarray) -> None:
        server = self.client.servers[group]
        try:
            while not self._stop.is_set():
                if self.counts[group] % 3:
                    server.push(values, rate=1.0, steps=1)
                else:
                    server.push_pull(values, out, rate=1.0, steps=1)
                self.counts[group] += 1
        except BaseException as error:
            self.errors.append(error)

    def await_more(self, pushes: int = 5) -> None:
        """Wait until every group has had so many more acknowledged."""
        goal = [count + pushes for count in self.counts]
        wait_until(
            lambda: (
                bool(self.errors)
                or all(now >= then for now, then in zip(self.counts, goal, strict=True))
            ),
            what="the client pushes on",
        )
        assert self.errors == []

    def await_stuck(self) -> None:
        """Wait until no group has made progress for a while."""
        seen: list[list[int]] = []

        def is_stuck() -> bool:
            seen.append(list(self.counts))
            return len(seen) > 10 and seen[-1] == seen[-10]

        wait_until(is_stuck, what="the client waits for the server")

    def finish(self) -> np.ndarray:
        """Stop; the weights after all that was acknowledged, each push applied once."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a push never ended"
        assert self.errors == []
        shards, weights = self._running.shards, self._running.flat()
        for chunk in shards.chunks:
            place = slice(chunk.start, chunk.start + chunk.floats)
            weights[place] = -self.counts[shards.server_of(chunk)]
        return weights

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self.client.interrupt()
        for thread in self._threads:
            thread.join(60)
        self._ends.close()
