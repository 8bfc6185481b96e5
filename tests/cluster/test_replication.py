"""Servers that keep copies: nothing acknowledged is lost or applied twice when one of them goes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import psutil
import pytest

from manyhands.errors import ProtocolError, StaleRoute
from manyhands.messages import Hello
from manyhands.optim import Adam
from manyhands.parameter_server.client.parameter_client import ParameterClient
from manyhands.parameter_server.placement import BucketPlace, Joining, endpoint_from_json
from manyhands.parameter_server.server_task import Cut
from manyhands.transport.connection import greet
from manyhands.transport.endpoint import Endpoint
from tests.cluster.conftest import wait_until
from tests.cluster.replicated import Pushers, placed, replicated
from tests.cluster.scripted_controller import ScriptedController


def promote(controller: ScriptedController, server: int, *, without: int) -> None:
    """Make a mirror primary, and let the old primary have no copy."""

    def changed(place: BucketPlace) -> BucketPlace:
        assert server in place.mirrors
        others = tuple(mirror for mirror in place.mirrors if mirror not in (server, without))
        return BucketPlace(server, place.lease + 1, others, (), "held")

    controller.change(changed)


def let_join(controller: ScriptedController, server: int) -> None:
    since = controller.placement.version + 1
    controller.change(
        lambda place: replace(place, joining=(*place.joining, Joining(server, since)))
    )


def without(controller: ScriptedController, server: int) -> None:
    controller.change(
        lambda place: replace(
            place,
            mirrors=tuple(m for m in place.mirrors if m != server),
            joining=tuple(entry for entry in place.joining if entry.server != server),
        )
    )


def accept_in_step(controller: ScriptedController, server: int) -> None:
    """Wait until every bucket's joining copy is in step; then make it a mirror."""
    places = controller.placement.buckets
    entries = {
        (bucket, entry.server, entry.since, place.lease)
        for bucket, place in places.items()
        for entry in place.joining
        if entry.server == server
    }
    assert entries
    wait_until(lambda: entries <= controller.in_step, what=f"server {server} in step")
    controller.change(
        lambda place: replace(
            place,
            mirrors=(*place.mirrors, server),
            joining=tuple(entry for entry in place.joining if entry.server != server),
        )
    )


@pytest.mark.parametrize("same_machine", [False, True])
@pytest.mark.parametrize("copies", [2, 3])
def test_a_killed_primary_loses_nothing_that_was_acknowledged(copies, same_machine):
    with replicated(copies) as (running, controller):
        controller.publish(placed(running.shards, 0, range(1, copies)))
        with (
            running.client(same_machine=same_machine) as first,
            running.client(same_machine=same_machine) as second,
            Pushers(running, [first, second]) as pushers,
        ):
            for server in range(1, copies):
                pushers.wait_for_more()
                running.kill(server - 1)
                promote(controller, server, without=server - 1)
                pushers.wait_for_more()
        np.testing.assert_array_equal(running.weights(), pushers.expected())


def test_states_of_the_rule_are_copied_with_the_weights():
    with replicated(2, rule=Adam(lr=0.01)) as (running, controller):
        controller.publish(placed(running.shards, 0, [1]))
        with running.client(admin=True) as client:
            generator = np.random.default_rng(7)
            for _ in range(5):
                values = generator.standard_normal(running.shards.floats).astype(np.float32)
                for server in client.servers:
                    server.push(values, rate=0.01, steps=1)
            before = [running.weights(), *client.get_states(2)]
            running.kill(0)
            promote(controller, 1, without=0)
            after = [running.weights(), *client.get_states(2)]
        for was, is_now in zip(before, after, strict=True):
            np.testing.assert_array_equal(was, is_now)


def test_an_old_primary_that_was_stopped_acknowledges_nothing_more():
    with replicated(2) as (running, controller):
        controller.publish(placed(running.shards, 0, [1]))
        with (
            running.client() as client,
            Pushers(running, [client]) as pushers,
        ):
            pushers.wait_for_more()
            running.pause(0)
            promote(controller, 1, without=0)
            pushers.wait_for_more()
            running.go_on(0)
            controller.wait_until_known(0, 1)
            pushers.wait_for_more()
        np.testing.assert_array_equal(running.weights(), pushers.expected())


def test_a_mirror_that_is_stopped_is_suspected_and_pushes_go_on_without_it():
    with replicated(3) as (running, controller):
        controller.publish(placed(running.shards, 0, [1, 2]))
        with (
            running.client() as client,
            Pushers(running, [client]) as pushers,
        ):
            pushers.wait_for_more()
            assert controller.suspected == set()
            running.pause(2)
            wait_until(lambda: (0, 2) in controller.suspected, what="the mirror suspected")
            assert (0, 1) not in controller.suspected
            without(controller, 2)
            pushers.wait_for_more()
            running.go_on(2)
            controller.wait_until_known(2)
            let_join(controller, 2)
            accept_in_step(controller, 2)
            pushers.wait_for_more()
            running.kill(0)
            promote(controller, 2, without=0)
            pushers.wait_for_more()
        np.testing.assert_array_equal(running.weights(), pushers.expected())


def test_servers_that_are_cut_off_from_each_other_suspect_and_find_back():
    with replicated(2) as (running, controller):
        controller.publish(placed(running.shards, 0, [1]))
        with (
            running.client() as client,
            Pushers(running, [client]) as pushers,
        ):
            pushers.wait_for_more()
            running.roles[0].send(Cut(1, True))
            running.roles[1].send(Cut(0, True))
            wait_until(lambda: (0, 1) in controller.suspected, what="the mirror suspected")
            running.roles[0].send(Cut(1, False))
            running.roles[1].send(Cut(0, False))
            pushers.wait_for_more()
        np.testing.assert_array_equal(running.weights(), pushers.expected())


def test_a_joining_server_is_filled_while_pushes_go_on_and_can_take_over():
    with replicated(3, start=[0, 1]) as (running, controller):
        controller.publish(placed(running.shards, 0, [1]))
        with (
            running.client() as client,
            Pushers(running, [client]) as pushers,
        ):
            pushers.wait_for_more()
            running.start(2)
            controller.wait_for_servers(0, 1, 2)
            let_join(controller, 2)
            accept_in_step(controller, 2)
            pushers.wait_for_more()
            for gone, heir in ((0, 1), (1, 2)):
                running.kill(gone)
                promote(controller, heir, without=gone)
                pushers.wait_for_more()
        np.testing.assert_array_equal(running.weights(), pushers.expected())


def test_a_server_that_was_started_again_is_empty_and_filled_anew():
    with replicated(2) as (running, controller):
        controller.publish(placed(running.shards, 0, [1]))
        with (
            running.client() as client,
            Pushers(running, [client]) as pushers,
        ):
            pushers.wait_for_more()
            running.kill(1)
            before = controller.heard[1]["incarnation"]
            running.start(1)
            wait_until(
                lambda: controller.heard[1]["incarnation"] != before, what="the new incarnation"
            )
            since = controller.placement.version + 1
            controller.change(
                lambda place: replace(place, mirrors=(), joining=(Joining(1, since),))
            )
            accept_in_step(controller, 1)
            pushers.wait_for_more()
            running.kill(0)
            promote(controller, 1, without=0)
            pushers.wait_for_more()
        np.testing.assert_array_equal(running.weights(), pushers.expected())


def test_filling_keeps_within_its_bandwidth():
    megabytes = 0.6  # of the parameters, as in `PARAMETERS`
    with replicated(2, fill_mb_s=0.5) as (running, controller):
        controller.publish(placed(running.shards, 0, joining=[1]))
        controller.wait_until_known(0, 1)
        wait_until(lambda: controller.in_step, what="the first bucket in step")
        total = len(running.shards.chunks)
        assert 4 * running.shards.floats / 1e6 == pytest.approx(megabytes, rel=0.05)
        report = running.report(0)
        assert report.snapshots_sent < total  # all of it takes more than a second
        accept_in_step(controller, 1)


def test_a_server_goes_on_without_its_controller_and_finds_the_next_one():
    with replicated(2) as (running, controller):
        controller.publish(placed(running.shards, 0, [1]))
        with (
            running.client() as client,
            Pushers(running, [client]) as pushers,
        ):
            pushers.wait_for_more()
            controller.__exit__()
            pushers.wait_for_more()
            with ScriptedController(running.token, port=controller.endpoint.port) as heir:
                heir.placement = controller.placement
                heir.wait_for_servers(0, 1)
                pushers.wait_for_more()
                running.kill(0)
                promote(heir, 1, without=0)
                pushers.wait_for_more()
                pushers.stop()
                np.testing.assert_array_equal(running.weights(), pushers.expected())


def test_updates_replication_and_administration_have_their_own_addresses():
    hosts = {"host": "127.0.0.1", "replication_host": "127.0.0.2", "admin_host": "127.0.0.3"}
    with replicated(2, **hosts) as (running, controller):
        controller.publish(placed(running.shards, 0, [1]))
        with running.client() as client:
            for server in client.servers:
                server.push(running.flat(1), rate=1.0, steps=1)
        assert controller.heard[0]["endpoint"]["host"] == "127.0.0.1"
        assert controller.heard[0]["replication"]["host"] == "127.0.0.2"
        assert controller.callers[0].address.startswith("127.0.0.3:")
        process = psutil.Process(running.roles[0].pid)
        links = process.net_connections(kind="tcp")
        replication = controller.heard[1]["replication"]["port"]
        to_peer = [link for link in links if link.raddr and link.raddr.port == replication]
        assert len(to_peer) == running.shards.lanes
        assert {link.laddr.ip for link in to_peer} == {"127.0.0.2"}
        np.testing.assert_array_equal(running.weights(), running.flat(-1))


def test_doors_are_for_those_they_are_meant_for():
    with replicated(1) as (running, controller):
        incarnation = controller.heard[0]["incarnation"]
        clients = running.serving[0].endpoint
        servers = endpoint_from_json(controller.heard[0]["replication"])

        def refused(door: Endpoint, **words: object) -> str:
            with pytest.raises(ProtocolError) as told:
                greet(door, Hello(token=running.token, client=1, lane=0, **words))
            return str(told.value)

        assert "for clients" in refused(clients, peer=1, target=incarnation)
        assert "for the run's servers" in refused(servers)
        assert "started again" in refused(servers, peer=1, target="another")


def test_copies_are_kept_over_tls():
    with replicated(2, encrypted=True) as (running, controller):
        controller.publish(placed(running.shards, 0, [1]))
        with (
            running.client() as client,
            Pushers(running, [client]) as pushers,
        ):
            pushers.wait_for_more()
            running.kill(0)
            promote(controller, 1, without=0)
            pushers.wait_for_more()
        np.testing.assert_array_equal(running.weights(), pushers.expected())


def test_nothing_is_served_before_a_placement_says_so():
    with replicated(1) as (running, controller):
        endpoints = [running.serving[0].endpoint]
        with (
            ParameterClient(running.shards, endpoints, token=running.token) as client,
            pytest.raises(StaleRoute),
        ):
            client.pull(running.flat())
        controller.publish(placed(running.shards, 0))
        np.testing.assert_array_equal(running.weights(), running.flat(0))
