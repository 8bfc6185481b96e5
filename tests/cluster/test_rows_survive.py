"""Rows of sparse parameters through servers that die: each push once, and nobody's array is wrong.

Clients push whole numbers to rows at random and fetch what changed into arrays of their own; at the
end every array must be what the servers have, and that the sum of what was acknowledged.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack

import numpy as np
import pytest

from manyhands.parameter_server.client.held_weights import HeldWeights
from manyhands.parameter_server.placement import BucketPlace
from manyhands.parameter_server.shard_map import Form, ParameterSpec
from tests.cluster.conftest import wait_until
from tests.cluster.replicated import ReplicatedServers, replicated
from tests.cluster.routed import PATIENT, everywhere
from tests.cluster.servers import fleet

PARAMETERS = (
    ParameterSpec("words", (900, 40), Form.ROWS),
    ParameterSpec("bias", (900,), Form.ROWS),
    ParameterSpec("dense", (30, 20)),
)
CHUNK_BYTES = 1 << 14


class SparseClient(threading.Thread):
    """Pushes to rows at random and fetches, and adds up what was acknowledged."""

    def __init__(self, running: ReplicatedServers, seed: int, *, same_machine: bool) -> None:
        super().__init__(daemon=True)
        self.client = running.client(**PATIENT, same_machine=same_machine)
        self.held = HeldWeights(running.shards, running.flat())
        self.sums = running.flat()
        self.count = self.fetched_rows = 0
        self.errors: list[BaseException] = []
        self._starts = running.shards.starts
        self._random = np.random.default_rng(seed)
        self._ending = threading.Event()

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                self.push()
                self.fetch()
        except BaseException as error:
            self.errors.append(error)

    def push(self) -> None:
        random = self._random
        words, bias = np.unique(random.integers(0, 900, 30)), np.unique(random.integers(0, 900, 9))
        updates = {
            0: (words, random.integers(1, 4, (len(words), 40)).astype(np.float32)),
            1: (bias, random.integers(1, 4, len(bias)).astype(np.float32)),
        }
        for server in self.client.servers:
            server.push_rows(updates, rate=1.0, steps=1)
        self.sums[: 900 * 40].reshape(900, 40)[words] += updates[0][1]
        self.sums[self._starts[1] :][bias] += updates[1][1]
        self.count += 1

    def fetch(self) -> None:
        for server in self.client.servers:
            before = self.held.weights[: 900 * 40].reshape(900, 40).copy()
            came = server.fetch(self.held).get(0, np.zeros(0, np.int64))
            after = self.held.weights[: 900 * 40].reshape(900, 40)
            moved = np.flatnonzero((before != after).any(1))
            assert np.isin(moved, came).all(), "a row changed that was not told"
            self.fetched_rows += len(came)

    def stop(self) -> None:
        self._ending.set()
        self.join(60)
        assert not self.is_alive(), "a call never ended"
        assert self.errors == []


class SparseClients:
    def __init__(self, running: ReplicatedServers, *, same_machine: bool) -> None:
        self._running = running
        self.all = [SparseClient(running, n, same_machine=same_machine) for n in (0, 1)]
        self._ends = ExitStack()

    def __enter__(self) -> SparseClients:
        for client in self.all:
            self._ends.enter_context(client.client)
            client.start()
        return self

    def __exit__(self, *exception: object) -> None:
        for client in self.all:
            client.client.interrupt()
        for client in self.all:
            client.join(60)
        self._ends.close()

    def await_more(self, rounds: int = 5) -> None:
        goal = [client.count + rounds for client in self.all]
        wait_until(
            lambda: (
                any(client.errors for client in self.all)
                or all(c.count >= n for c, n in zip(self.all, goal, strict=True))
            ),
            what="both clients push and fetch on",
        )
        assert [client.errors for client in self.all] == [[], []]

    def assert_right(self) -> None:
        for client in self.all:
            client.stop()
        expected = -sum(client.sums for client in self.all)
        np.testing.assert_array_equal(self._running.weights(), expected)
        for client in self.all:
            client.fetch()
            np.testing.assert_array_equal(client.held.weights, expected)


@pytest.mark.parametrize("same_machine", [False, True], ids=["tcp", "same machine"])
def test_a_primary_dies_and_its_mirror_serves_rows_on(same_machine: bool) -> None:
    sizes = {"parameters": PARAMETERS, "chunk_bytes": CHUNK_BYTES}
    with replicated(2, **sizes) as (running, controller):
        controller.publish(everywhere(running.shards, BucketPlace(0, 1, (1,))))
        with SparseClients(running, same_machine=same_machine) as clients:
            clients.await_more()
            running.kill(0)
            controller.publish(everywhere(running.shards, BucketPlace(1, 2, origin="held")))
            clients.await_more()
            clients.assert_right()
            rounds = sum(client.count for client in clients.all)
            rows = sum(client.fetched_rows for client in clients.all)
            assert rows < 2 * 3 * 900 + rounds * 200  # each saw the whole only a few times


@pytest.mark.parametrize("same_machine", [False, True], ids=["tcp", "same machine"])
def test_a_primary_that_was_paused_serves_no_rows_any_more(same_machine: bool) -> None:
    """What it told before the pause, and nobody else ever had, must not stay anywhere."""
    sizes = {"parameters": PARAMETERS, "chunk_bytes": CHUNK_BYTES}
    with replicated(2, **sizes) as (running, controller):
        controller.publish(everywhere(running.shards, BucketPlace(0, 1, (1,))))
        with SparseClients(running, same_machine=same_machine) as clients:
            clients.await_more()
            running.pause(0)
            controller.publish(everywhere(running.shards, BucketPlace(1, 2, origin="held")))
            clients.await_more()
            running.go_on(0)
            clients.await_more()
            clients.assert_right()


def test_a_server_that_starts_again_empty_is_not_taken_for_the_one_before() -> None:
    with fleet(parameters=PARAMETERS, chunk_bytes=CHUNK_BYTES) as first:
        held = HeldWeights(first.shards, first.flat())
        with first.client(admin=True) as client:
            client.set_weights(np.full(first.shards.floats, 5, np.float32))
            client.fetch(held)
            assert (held.weights[first.used()] == 5).all()
    with fleet(parameters=PARAMETERS, chunk_bytes=CHUNK_BYTES) as second:
        rows = np.arange(900)
        with second.client() as client:
            for _ in range(3):  # its versions pass those of the one before
                update = {0: (rows, np.ones((900, 40), np.float32))}
                client.servers[0].push_rows(update, rate=1.0, steps=1)
            client.fetch(held)
            np.testing.assert_array_equal(held.weights, second.weights())


def test_staleness_counts_the_pushes_of_others_to_the_same_chunks() -> None:
    with fleet(parameters=PARAMETERS, chunk_bytes=CHUNK_BYTES, staleness="scale") as running:
        update = {0: (np.array([7]), np.ones((1, 40), np.float32))}
        with running.client() as one, running.client() as two:
            for _ in range(2):
                one.servers[0].push_rows(update, rate=1.0, steps=1)
            assert one.servers[0].staleness == 0
            two.servers[0].push_rows(update, rate=1.0, steps=1)
            assert two.servers[0].staleness == 2
            assert running.weights()[7 * 40] == -2.5  # the rate of the last was halved
            two.fetch(HeldWeights(running.shards, running.flat()))
            two.servers[0].push_rows(update, rate=1.0, steps=1)
            assert two.servers[0].staleness == 0
