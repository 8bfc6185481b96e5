"""When no copy of a bucket is left, a server reads it back from the durable store, or says so."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from manyhands.parameter_server.persistence import WriteBack
from tests.cluster.conftest import wait_until
from tests.cluster.replicated import Pushers
from tests.cluster.test_survival import SERVERS, World, world


def kill_and_restart_all(run: World) -> None:
    for server in range(SERVERS):
        run.servers.kill(server)
    for server in range(SERVERS):
        run.restart(server)


def wait_until_written(run: World) -> None:
    """Wait until what was acknowledged before this call is on the disk."""
    asked = time.monotonic()

    def written(server: int) -> bool:
        store = run.servers.report(server).store
        return store is not None and store.durable_at > asked

    for server in range(SERVERS):
        wait_until(lambda s=server: written(s), what=f"server {server} has written back")


def test_all_servers_are_killed_and_go_on_from_the_store(tmp_path: Path):
    write_back = WriteBack(directory=tmp_path / "store", every_s=0.2)
    with (
        world(tmp_path, task={"write_back": write_back}) as run,
        run.servers.client() as client,
    ):
        with Pushers(run.servers, [client]) as pushers:
            pushers.wait_for_more()
        wait_until_written(run)
        before = run.servers.weights()
        np.testing.assert_array_equal(before, pushers.expected())
        kill_and_restart_all(run)
        np.testing.assert_array_equal(run.servers.weights(), before)
        with Pushers(run.servers, [client]) as more:
            more.wait_for_more()
        np.testing.assert_array_equal(run.servers.weights(), before + more.expected())
        run.controller.wait_until_whole()
        run.servers.kill(0)
        np.testing.assert_array_equal(run.servers.weights(), before + more.expected())


def test_what_no_store_has_is_reported_as_lost_and_not_served_as_zeros(tmp_path: Path):
    with world(tmp_path) as run:
        with run.servers.client() as client, Pushers(run.servers, [client]) as pushers:
            pushers.wait_for_more()
        kill_and_restart_all(run)
        buckets = len(run.controller.placement().buckets)

        def lost() -> int:
            return sum(run.servers.report(server).lost_buckets for server in range(SERVERS))

        wait_until(lambda: lost() == buckets, what="every bucket reported as lost")
