"""A parameter server in its own process, and real clients: sums are exact, whatever the way."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from manyhands import optim
from manyhands.errors import ProtocolError, StaleRoute
from manyhands.messages import Refusal
from manyhands.parameter_server.server_task import Stop
from manyhands.parameter_server.shard_map import Form, ParameterSpec, make_shard_map
from tests.cluster.servers import PARAMETERS, Fleet, fleet, shared_arrays

WAYS = ["tcp", "same machine", "tls"]


def push_often(running: Fleet, way: str, number: int, times: int, failures: list[Any]) -> None:
    """One client: pushes whole numbers, sometimes pulling as well."""
    try:
        with ExitStack() as stack:
            options: dict[str, Any] = {"purpose": f"client {number}"}
            values, out = running.flat(), running.flat()
            if way == "same machine":
                own, (values, out) = stack.enter_context(shared_arrays(running.shards, 2))
                options |= {"same_machine": True, "own": own}
            client = stack.enter_context(running.client(**options))
            for turn in range(times):
                values[:] = number + turn
                for server in client.servers:
                    if turn % 3:
                        server.push(values, rate=1.0, steps=1)
                    else:
                        server.push_pull(values, out, rate=1.0, steps=1)
    except BaseException as error:
        failures.append(error)


@pytest.mark.parametrize("way", WAYS)
def test_the_sum_of_concurrent_pushes_is_exact(way):
    clients, times = 3, 12
    with fleet(servers=2, lanes=2, encrypted=way == "tls") as running:
        failures: list[Any] = []
        threads = [
            threading.Thread(target=push_often, args=(running, way, number, times, failures))
            for number in range(1, clients + 1)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failures == []
        expected = sum(number + turn for number in range(1, clients + 1) for turn in range(times))
        used = running.used()
        np.testing.assert_array_equal(running.weights(), np.where(used, -expected, 0))
        reports = [running.report(server) for server in range(2)]
        assert sum(r.updates for r in reports) == clients * times * len(running.shards.chunks)
        assert all(sum(r.staleness) == r.updates for r in reports)
        assert sum(r.pushed_bytes for r in reports) == clients * times * 4 * used.sum()
        assert all(r.replays == 0 and r.refusals == 0 for r in reports)


@pytest.mark.parametrize("same_machine", [False, True])
def test_a_push_brings_the_new_weights_and_their_version(same_machine):
    with fleet(lanes=2) as running, running.client(same_machine=same_machine) as client:
        link, out = client.servers[0], running.flat()
        for turn in range(1, 4):
            link.push_pull(running.flat(1), out, rate=0.5, steps=1)
            np.testing.assert_array_equal(out, np.where(running.used(), -0.5 * turn, 0))
            assert link.staleness == 0
        with running.client() as other:
            other.servers[0].push(running.flat(1), rate=1.0, steps=1)
            assert other.servers[0].staleness == 3  # it never pulled
        for _ in range(2):
            link.push(running.flat(1), rate=1.0, steps=1)
            assert link.staleness == 1  # the other's update; it knows its own
        link.pull(out)
        link.push(running.flat(1), rate=1.0, steps=1)
        assert link.staleness == 0
        report = running.report()
        chunks = len(running.shards.chunks)
        assert report.staleness[:4] == (4 * chunks, 2 * chunks, 0, chunks)
        counters = client.counters
        assert counters.pushed_bytes == 4 * 6 * running.used().sum()
        assert counters.reconnects == 0


def test_weights_and_states_are_set_and_read_by_an_admin():
    with fleet(servers=2, lanes=2, rule=optim.Adam(lr=0.1)) as running:
        generator = np.random.default_rng(0)
        used = running.used()
        lines = [np.where(used, generator.random(len(used)), 0).astype("f") for _ in range(3)]
        with running.client(admin=True) as admin:
            admin.set_weights(lines[0])
            admin.set_states(lines[1:])
            np.testing.assert_array_equal(running.weights(), lines[0])
            np.testing.assert_array_equal(admin.get_states(2), lines[1:])
        with running.client() as client:
            with pytest.raises(ProtocolError) as told:
                client.set_weights(lines[1])
            assert told.value.refusal == Refusal.NOT_ALLOWED
            np.testing.assert_array_equal(running.weights(), lines[0])


LAYERS = (
    ParameterSpec("dense", (90, 60)),
    ParameterSpec("linear", (300, 60), Form.FACTORS),
    ParameterSpec("words", (200, 32), Form.ROWS),
)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("rule", [optim.SGD(lr=1.0), optim.Adagrad(lr=1.0)])
def test_factors_and_rows_do_what_the_dense_gradient_does(rule, lanes):
    generator = np.random.default_rng(1)
    a, d = generator.random((8, 60), "f"), generator.random((8, 300), "f")
    rows = np.array([199, 3, 64, 0])
    touched = generator.random((4, 32), "f")
    dense = [ParameterSpec(spec.name, spec.shape) for spec in LAYERS]
    results = []
    for parameters in (LAYERS, dense):
        with (
            fleet(lanes=lanes, parameters=parameters, rule=rule, chunk_bytes=8192) as running,
            running.client() as client,
        ):
            link, out = client.servers[0], running.flat()
            for _ in range(3):
                values = running.flat(0.25)
                starts = running.shards.starts
                if parameters is LAYERS:
                    link.push_factors(1, a, d, rate=0.1, steps=1)
                    link.push_rows({2: (rows, touched)}, rate=0.1, steps=1)
                else:
                    values[starts[1] : starts[1] + 18000] = (d.T @ a).ravel()
                    words = np.zeros((200, 32), "f")
                    words[rows] = touched
                    values[starts[2] : starts[2] + 6400] = words.ravel()
                link.push(values, rate=0.1, steps=1)
            link.pull(out)
            results.append(out.copy())
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("encoding", ["bfloat16", "int8", "topk"])
def test_compressed_pushes_say_what_arrived(encoding):
    with fleet() as running, running.client(encoding=encoding, keep=0.1) as client:
        values = np.random.default_rng(2).standard_normal(running.shards.floats).astype("f")
        sent = running.flat()
        client.servers[0].push(values, rate=1.0, steps=1, sent=sent)
        np.testing.assert_array_equal(running.weights(), -sent * running.used())
        assert client.counters.pushed_bytes < 2.1 * running.used().sum()
        assert not np.array_equal(sent, values)


def test_an_update_that_is_not_finite_is_refused_and_leaves_the_chunk_alone():
    with fleet() as running, running.client() as client:
        values = running.flat(1)
        start = running.shards.starts[1]  # in the chunk of "small"
        values[start + 5] = np.nan
        with pytest.raises(ProtocolError) as told:
            client.servers[0].push(values, rate=1.0, steps=1)
        assert told.value.refusal == Refusal.NOT_FINITE
        expected = np.where(running.used(), -1, 0)
        expected[start : start + 21] = 0
        np.testing.assert_array_equal(running.weights(), expected)
        client.servers[0].push(running.flat(1), rate=1.0, steps=1)  # the link is still good
        running.wait_for(lambda r: sum(r.refused.values()) == 1, what="the refusal is counted")


def test_another_token_is_turned_away_at_once():
    with fleet() as running:
        with pytest.raises(ProtocolError, match="token") as told:
            running.client(token="00" * 16).start()
        assert told.value.refusal == Refusal.STRANGER
        running.wait_for(lambda r: r.strangers == 1, what="the stranger is counted")


def test_a_client_with_another_map_is_told_so():
    with fleet() as running:
        running.shards = make_shard_map(PARAMETERS, servers=1, lanes=1, version=2)
        with pytest.raises(StaleRoute, match="has shard map 1 with 1 lanes; this client has map 2"):
            running.client().start()
        running.shards = make_shard_map(PARAMETERS, servers=1, lanes=2)
        with pytest.raises(ProtocolError, match="no lane 1"):
            running.client().start()


def test_a_stopped_server_reports_last():
    with fleet() as running, running.client() as client:
        client.servers[0].push(running.flat(1), rate=1.0, steps=1)
        running.roles[0].send(Stop())
        last = None
        while (message := running.roles[0].receive()) is not None:
            last = message
        assert last is not None
        assert last.updates == len(running.shards.chunks)
        running.roles[0].process.wait(20)
        assert running.roles[0].process.returncode == 0


def test_too_many_connections_are_refused():
    with fleet(max_connections=2) as running, running.client(), running.client():
        running.wait_for(lambda r: r.connections == 2, what="two are connected")
        with pytest.raises(ProtocolError, match="2 connections are open"):
            running.client().start()
