"""A real controller on a real etcd that loses its leader, its majority and its patience mid-run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from manyhands.controller.registry_address import open_registry
from tests.cluster.conftest import wait_until
from tests.controller.etcd_cluster import EtcdCluster, etcd_cluster
from tests.controller.scripted import Stage, is_whole, stage


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[EtcdCluster]:
    """A cluster that a test may break."""
    cluster = etcd_cluster(tmp_path)
    yield cluster
    cluster.close()


def leader_of(cluster: EtcdCluster) -> int:
    wait_until(lambda: cluster.leader() is not None, what="etcd has a leader")
    leader = cluster.leader()
    assert leader is not None
    return leader


def lose_server_0(run: Stage) -> None:
    """Kill a server and wait until the others lead what it led."""
    run.servers[0].close()
    run.wait(
        lambda p: all(place.primary in (1, 2) for place in p.buckets.values()),
        what="server 0 is replaced",
    )


def heartbeats_unanswered(run: Stage) -> int:
    return run.servers[1].unanswered + run.servers[2].unanswered


@pytest.mark.parametrize("how", ["killed", "paused"])
def test_a_leader_of_etcd_that_is_lost_costs_nobody_anything(
    fragile: EtcdCluster, how: str
) -> None:
    with stage(fragile.address("run"), servers=3) as run:
        first = run.wait(is_whole(3), what="a first placement")
        unanswered = heartbeats_unanswered(run)
        lost = leader_of(fragile)
        if how == "killed":
            fragile.kill(lost)
        else:
            fragile.pause(lost, on=True)
        lose_server_0(run)
        assert heartbeats_unanswered(run) == unanswered
        run.start_server(0)
        run.wait(is_whole(3), what="copies are re-created")
        if how == "killed":
            fragile.start_member(lost)
        else:
            fragile.pause(lost, on=False)
        run.replace_controller()
        after = run.wait(is_whole(3), what="a new controller goes on")
        assert after.version > first.version


def test_without_a_majority_nothing_is_decided_and_servers_go_on(fragile: EtcdCluster) -> None:
    with stage(fragile.address("run"), servers=3) as run:
        first = run.wait(is_whole(3), what="a first placement")
        wait_until(lambda: run.servers[1].version == first.version, what="servers know it")
        unanswered = heartbeats_unanswered(run)
        down = [n for n in range(3) if n != leader_of(fragile)]
        for number in down:
            fragile.kill(number)
        run.servers[0].close()
        wait_until(
            lambda: not run.ask("status")["servers"]["0"]["alive"], what="server 0 is missed"
        )
        registry = open_registry(run.registry)
        with pytest.raises(Exception, match="No etcd member"):
            registry.get("placement")  # takes as long as a client is patient
        assert run.placement() == first
        assert heartbeats_unanswered(run) == unanswered
        for number in down:
            fragile.start_member(number)
        lose_server_0(run)
        assert run.roles[-1].poll() is None


def test_a_write_whose_answer_was_lost_is_recognised(fragile: EtcdCluster) -> None:
    """Counting through the death of the leader: every success counts once, none is counted lost."""
    registry = open_registry(fragile.address("run"))
    count, killed = 0, False
    while count < 60:
        entry = registry.get("n")
        assert (0 if entry is None else int(entry.value)) == count
        revision = 0 if entry is None else entry.revision
        if count == 20 and not killed:
            fragile.kill(leader_of(fragile))
            killed = True
        if registry.put("n", str(count + 1).encode(), expected=revision) is not None:
            count += 1
