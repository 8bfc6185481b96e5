"""A client follows its chunks: kills, pauses, routes that change under a push; each update once."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from manyhands.parameter_server.placement import BucketPlace, Joining
from tests.cluster.conftest import wait_until
from tests.cluster.replicated import ReplicatedServers, replicated
from tests.cluster.routed import PATIENT, GroupPusher, everywhere

WAYS = ["tcp", "same machine", "tls"]


def assert_weights(running: ReplicatedServers, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(running.weights(), expected)
    np.testing.assert_array_equal(running.weights(same_machine=True), expected)


def pusher_by(way: str, running: ReplicatedServers) -> GroupPusher:
    return GroupPusher(running, same_machine=way == "same machine")


def refused(running: ReplicatedServers, server: int) -> int:
    """Stale leases that a server has refused."""
    return running.report(server).refused.get("stale_lease", 0)


@pytest.mark.parametrize("way", WAYS)
def test_a_primary_that_is_killed(way):
    with replicated(2, encrypted=way == "tls") as (running, controller):
        controller.publish(everywhere(running.shards, BucketPlace(0, 1, (1,))))
        with pusher_by(way, running) as pusher:
            pusher.await_more()
            running.kill(0)
            controller.publish(everywhere(running.shards, BucketPlace(1, 2, origin="held")))
            pusher.await_more()
            assert pusher.client.counters.reroutes > 0
            assert_weights(running, pusher.finish())


@pytest.mark.parametrize("way", WAYS)
def test_a_primary_that_is_paused_is_left_as_soon_as_the_route_changes(way):
    """No time runs out here: only the new route can end the calls that hang."""
    with replicated(2, encrypted=way == "tls") as (running, controller):
        controller.publish(everywhere(running.shards, BucketPlace(0, 1, (1,))))
        with pusher_by(way, running) as pusher:
            pusher.await_more()
            running.pause(0)
            pusher.await_stuck()
            controller.publish(everywhere(running.shards, BucketPlace(1, 2, origin="held")))
            pusher.await_more()
            running.go_on(0)  # what it was sent is still in its sockets
            pusher.await_more()
            expected = pusher.finish()
        controller.wait_until_known(0, 1)
        assert_weights(running, expected)


def test_a_route_that_changes_twice_under_a_push():
    with replicated(3) as (running, controller):
        controller.publish(everywhere(running.shards, BucketPlace(0, 1, (1, 2))))
        with GroupPusher(running) as pusher:
            pusher.await_more()
            for server in (0, 1):
                running.pause(server)
            pusher.await_stuck()
            controller.publish(everywhere(running.shards, BucketPlace(1, 2, (2,), origin="held")))
            pusher.await_stuck()
            controller.publish(everywhere(running.shards, BucketPlace(2, 3, origin="held")))
            pusher.await_more()
            for server in (0, 1):
                running.go_on(server)
            pusher.await_more()
            assert_weights(running, pusher.finish())


def test_a_route_to_a_server_that_does_not_know_it_yet():
    with replicated(2) as (running, controller):
        controller.publish(everywhere(running.shards, BucketPlace(0, 1, (1,))))
        with GroupPusher(running) as pusher:
            pusher.await_more()
            controller.in_the_dark.add(1)
            running.kill(0)
            controller.publish(everywhere(running.shards, BucketPlace(1, 2, origin="held")))
            wait_until(lambda: refused(running, 1) > 3, what="the server refuses")
            controller.in_the_dark.clear()
            pusher.await_more()
            assert_weights(running, pusher.finish())


def test_buckets_that_move_back_and_forth_between_living_servers():
    with replicated(2) as (running, controller):
        buckets = sorted({chunk.bucket for chunk in running.shards.chunks})
        lease = 1
        controller.publish(everywhere(running.shards, BucketPlace(0, lease, (1,))))
        with GroupPusher(running, same_machine=True) as pusher:
            for turn in range(8):
                pusher.await_more(2)
                lease += 1
                moved = {bucket: BucketPlace(1, lease, (0,), origin="held") for bucket in buckets}
                half = {b: moved[b] for b in buckets[turn % 2 :: 2]}
                controller.publish(
                    everywhere(running.shards, BucketPlace(0, lease, (1,), origin="held"), half)
                )
                controller.wait_until_known(0, 1)
            pusher.await_more()
            assert_weights(running, pusher.finish())


@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_begins_while_the_primary_is_paused(way):
    with replicated(2, encrypted=way == "tls") as (running, controller):
        controller.publish(everywhere(running.shards, BucketPlace(0, 1, (1,))))
        controller.wait_until_known(0, 1)
        running.pause(0)
        client = running.client(same_machine=way == "same machine", **PATIENT)
        starting = threading.Thread(target=client.start)
        starting.start()
        wait_until(
            lambda: client.routes.table.version == controller.placement.version,
            what="the client has the route",
        )
        controller.publish(everywhere(running.shards, BucketPlace(1, 2, origin="held")))
        starting.join(60)
        assert not starting.is_alive()
        out = np.ones(running.shards.floats, np.float32)
        client.pull(out)
        client.close()


def test_sets_and_gets_follow_too_and_a_late_set_undoes_nothing():
    with replicated(2) as (running, controller):
        controller.publish(everywhere(running.shards, BucketPlace(0, 1, (1,))))
        with running.client(admin=True, **PATIENT) as admin:
            start = running.flat(5)
            controller.wait_until_known(0, 1)
            running.pause(0)
            setting = threading.Thread(target=admin.set_weights, args=(start,))
            setting.start()
            controller.publish(everywhere(running.shards, BucketPlace(1, 2, origin="held")))
            setting.join(60)
            assert not setting.is_alive()
            for server in admin.servers:
                server.push(start, rate=1.0, steps=1)
            running.go_on(0)
            controller.wait_until_known(0, 1)
            again = Joining(0, controller.placement.version + 1)
            place = BucketPlace(1, 2, joining=(again,), origin="held")
            controller.publish(everywhere(running.shards, place))
            out = np.ones_like(start)
            for server in admin.servers:
                server.get_array(0, out)
            np.testing.assert_array_equal(out[start != 0], 0)
