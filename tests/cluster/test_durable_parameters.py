"""Parameters on a disk: real servers, all killed at once, and a run that goes on from the store."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyhands import optim
from manyhands.errors import CheckpointError
from manyhands.optim.native import rule_spec
from manyhands.parameter_server.persistence import WriteBack
from manyhands.parameter_server.server_task import Stop
from manyhands.parameter_server.shard_map import ParameterSpec, ShardMap
from manyhands.parameter_server.store.folder import next_era, segment_names
from manyhands.parameter_server.store.restoring import StoredModel, read_flat
from tests.cluster.conftest import wait_until
from tests.cluster.servers import Fleet, fleet

ADAM = optim.Adam(lr=0.1)
SOON_S = 0.1


def stored(directory: Path, shards: ShardMap, rule: optim.Rule = ADAM) -> StoredModel:
    return read_flat([directory], shards, [rule_spec(rule)] * len(shards.parameters))


def is_stored(directory: Path, shards: ShardMap, rule: optim.Rule, era: int) -> bool:
    """Whether an era has written something and nothing is missing."""
    if next_era([directory]) != era + 1:
        return False
    try:
        return bool(stored(directory, shards, rule).written_at)
    except CheckpointError:
        return False


def has_updates(directory: Path, shards: ShardMap, count: int) -> bool:
    try:
        return int(stored(directory, shards).begun.min()) >= count
    except CheckpointError:
        return False


def gradient(shards: ShardMap, step: int) -> np.ndarray:
    """The same wherever the parameters are cut: it depends on the place in the flat array."""
    return np.random.default_rng(step).standard_normal(shards.floats).astype(np.float32)


def push(running: Fleet, steps: range) -> None:
    with running.client(purpose="test pushes") as client:
        for step in steps:
            for server in client.servers:
                server.push(gradient(running.shards, step), rate=0.1, steps=1)


def without_a_stop(steps: int) -> np.ndarray:
    """The weights of a run of so many updates that nothing ever happened to."""
    with fleet(rule=ADAM) as running:
        with running.client(admin=True) as client:
            client.set_weights(running.flat(1.0))
        push(running, range(steps))
        return running.weights() * running.used()


def kill_all(running: Fleet) -> None:
    for role in running.roles:
        os.kill(role.pid, signal.SIGKILL)


def resumed(directory: Path, **settings: Any) -> Any:
    """Servers of the era after what is stored."""
    again = WriteBack(directory=directory, era=next_era([directory]), every_s=SOON_S)
    return fleet(rule=ADAM, write_back=again, **settings)


def give_back(running: Fleet, model: StoredModel) -> None:
    with running.client(admin=True) as client:
        client.set_weights(model.weights)
        client.set_states(model.states, model.begun)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1)])
def test_a_run_goes_on_from_the_store_on_another_number_of_servers(
    tmp_path: Path, before: int, after: int
) -> None:
    directory = tmp_path / "store"
    settings = {"lanes": 2, "chunk_bytes": 1 << 18}
    first = WriteBack(directory=directory, every_s=SOON_S)
    with fleet(servers=before, rule=ADAM, write_back=first, **settings) as running:
        with running.client(admin=True) as client:
            client.set_weights(running.flat(1.0))
        push(running, range(10))
        wait_until(lambda: has_updates(directory, running.shards, 10), what="all is stored")
        kill_all(running)

    with resumed(directory, servers=after, **settings) as running:
        give_back(running, stored(directory, running.shards))
        push(running, range(10, 20))
        found = running.weights() * running.used()
        wait_until(lambda: has_updates(directory, running.shards, 20), what="all is stored again")
    # The bias of Adam's averages is corrected by the number of updates: lost, it would show here.
    np.testing.assert_allclose(found, without_a_stop(20), rtol=1e-5, atol=1e-6)
    assert {name[:6] for name in segment_names(directory)} == {"000002"}


def killed_while_writing(
    directory: Path, era: int, parameters: list[ParameterSpec], rule: optim.Rule
) -> ShardMap:
    """Servers that were killed in the middle of pushes, each of which added one, and of writes."""
    again = WriteBack(directory=directory, era=era, every_s=0.02)
    with (
        fleet(servers=2, parameters=parameters, rule=rule, write_back=again) as running,
        running.client(admin=True) as client,
    ):
        client.set_weights(running.flat(0.0))

        def push_once() -> bool:
            for server in client.servers:
                server.push(running.flat(-1.0), rate=1.0, steps=1)
            return is_stored(directory, running.shards, rule, era)

        wait_until(push_once, what="all is stored once")
        for _ in range(50):
            push_once()
        kill_all(running)
    return running.shards


def test_what_a_killed_server_wrote_is_whole(tmp_path: Path) -> None:
    parameters = [ParameterSpec(f"w{number}", (40, 50)) for number in range(30)]
    rule = optim.SGD(lr=1.0)
    for era in range(1, 4):
        shards = killed_while_writing(tmp_path / "store", era, parameters, rule)
        model = stored(tmp_path / "store", shards, rule)
        for chunk in shards.chunks:
            values = np.unique(model.weights[chunk.start : chunk.start + chunk.floats])
            assert values.tolist() == [model.begun[chunk.number]]
        assert model.refused == ()


def test_a_server_that_is_told_to_stop_writes_everything_first(tmp_path: Path) -> None:
    settings = WriteBack(directory=tmp_path / "store", every_s=600.0)
    with fleet(rule=ADAM, write_back=settings) as running:
        with running.client(admin=True) as client:
            client.set_weights(running.flat(1.0))
        push(running, range(3))
        last = running.weights()
        running.roles[0].send(Stop())
        running.roles[0].wait_until(time.monotonic() + 30)
    np.testing.assert_array_equal(stored(tmp_path / "store", running.shards).weights, last)


def test_a_store_that_can_not_be_written_is_reported_and_stops_nobody(tmp_path: Path) -> None:
    settings = WriteBack(directory=tmp_path / "no" / "store", every_s=SOON_S)
    with fleet(rule=ADAM, write_back=settings) as running:
        push(running, range(3))
        running.wait_for(
            lambda report: report.store is not None and "No such file" in report.store.trouble,
            what="trouble is reported",
        )
        push(running, range(3, 6))
        (tmp_path / "no").mkdir()
        running.wait_for(
            lambda report: report.store is not None and report.store.trouble == "",
            what="trouble is over",
        )
        wait_until(lambda: has_updates(tmp_path / "no" / "store", running.shards, 6), what="stored")


def test_what_the_clients_count_is_what_the_servers_counted() -> None:
    with fleet(rule=ADAM, servers=2) as running:
        push(running, range(4))
        with running.client(admin=True) as client:
            updates = np.zeros(len(running.shards.chunks), np.int64)
            states = client.get_states(2, updates)
            assert set(updates.tolist()) == {4}
            client.set_states(states, updates + 100)
            client.get_states(2, updates)
            assert set(updates.tolist()) == {104}
            client.set_states(states)  # says nothing of it
            client.get_states(2, updates)
            assert set(updates.tolist()) == {104}
