"""Where a client believes the buckets to be, and how it hears that they have moved."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from manyhands.errors import ConfigError, ProtocolError, ServerUnavailable
from manyhands.parameter_server.client.routes import (
    ControllerRoutes,
    Route,
    RouteTable,
    StaticRoutes,
    Target,
    table_of,
)
from manyhands.parameter_server.placement import BucketPlace, Member, Placement
from manyhands.parameter_server.shard_map import ParameterSpec, make_shard_map
from manyhands.transport.endpoint import Endpoint
from tests.cluster.scripted_controller import ScriptedController

SHARDS = make_shard_map([ParameterSpec(f"p{n}", (20,)) for n in range(6)], servers=2, lanes=1)
DOORS = [Endpoint("127.0.0.1", 7), Endpoint("127.0.0.1", 8)]
MEMBERS = {n: Member(n, "first", door, door, "here") for n, door in enumerate(DOORS)}
TOKEN = "5a" * 16
BUCKETS = sorted({chunk.bucket for chunk in SHARDS.chunks})


def all_at(server: int | None, version: int, lease: int) -> Placement:
    return Placement(version, MEMBERS, dict.fromkeys(BUCKETS, BucketPlace(server, lease)))


@pytest.fixture
def controller() -> Iterator[ScriptedController]:
    with ScriptedController(TOKEN) as controller:
        yield controller


@pytest.fixture
def routes(controller: ScriptedController) -> Iterator[ControllerRoutes]:
    routes = ControllerRoutes(controller.endpoint, token=TOKEN)
    yield routes
    routes.close()


def wait_for(routes: ControllerRoutes, version: int) -> RouteTable:
    assert routes.wait_newer(version - 1, 30)
    return routes.table


def start(routes: ControllerRoutes, within_s: float = 30.0) -> None:
    routes.start(threading.Event(), within_s)


def test_static_routes_are_those_of_the_map():
    routes = StaticRoutes(SHARDS, DOORS)
    for chunk in SHARDS.chunks:
        home = SHARDS.server_of(chunk)
        assert routes.table.of(chunk.bucket) == Route(Target(home, "", DOORS[home]), 0)
    assert not routes.wait_newer(0, 60.0)
    with pytest.raises(ConfigError, match="1 addresses for the 2 servers"):
        StaticRoutes(SHARDS, DOORS[:1])


def test_the_table_of_a_placement():
    one, two, three = BUCKETS[:3]
    places = {one: BucketPlace(1, 9, (0,)), two: BucketPlace(None, 3), three: BucketPlace(5, 3)}
    others = dict.fromkeys(BUCKETS, BucketPlace(0, 2, (1,)))
    table = table_of(Placement(7, MEMBERS, others | places))
    assert table.version == 7
    assert table.of(one) == Route(Target(1, "first", DOORS[1]), 9)
    assert table.of(BUCKETS[3]) == Route(Target(0, "first", DOORS[0]), 2)
    assert table.of(two) is None
    assert table.of(three) is None  # its primary is no member
    assert table.of(99999) is None


def test_a_new_placement_is_heard_and_told(controller, routes):
    heard: list[int] = []
    controller.announce(all_at(0, 1, lease=1))
    start(routes)
    start(routes)
    routes.listen(lambda table: heard.append(table.version))
    assert routes.table.of(BUCKETS[0]) == Route(Target(0, "first", DOORS[0]), 1)
    for version in (2, 3):
        controller.announce(all_at(1, version, lease=version))
        assert wait_for(routes, version).of(BUCKETS[0]) == Route(
            Target(1, "first", DOORS[1]), version
        )
    assert routes.placement == controller.placement
    wait_for_list(heard, [2, 3])


def wait_for_list(found: list[int], expected: list[int]) -> None:
    end = time.monotonic() + 30
    while found != expected:
        assert time.monotonic() < end, found
        time.sleep(0.002)


def test_an_older_placement_is_not_believed(controller, routes):
    controller.announce(all_at(0, 5, lease=5))
    start(routes)
    assert not routes.replace(table_of(all_at(1, 4, lease=4)))
    assert not routes.replace(table_of(all_at(1, 5, lease=5)))
    assert routes.table.of(BUCKETS[0]) == Route(Target(0, "first", DOORS[0]), 5)


def test_a_controller_that_is_replaced_is_found_again_and_the_table_stays_meanwhile():
    with ScriptedController(TOKEN) as first:
        first.announce(all_at(0, 1, lease=1))
        routes = ControllerRoutes(first.endpoint, token=TOKEN)
        start(routes)
    assert not routes.wait_newer(1, 0.3)
    assert routes.table.version == 1
    with ScriptedController(TOKEN, port=first.endpoint.port) as second:
        second.announce(all_at(1, 2, lease=2))
        wait_for(routes, 2)
        routes.close()
        routes.close()


def test_a_controller_that_has_placed_nothing_yet_is_waited_for(controller, routes):
    controller.announce(Placement(-1, {}, {}))
    publishing = threading.Timer(0.1, controller.announce, [all_at(0, 1, lease=1)])
    publishing.start()
    start(routes)
    assert routes.table.version == 1
    publishing.join()


def test_waiting_for_the_first_placement_ends(controller, routes):
    controller.announce(Placement(-1, {}, {}))
    with pytest.raises(ServerUnavailable, match="has placed nothing yet"):
        start(routes, within_s=2.0)
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(ServerUnavailable):
        routes.start(stopping, 600.0)


def test_nobody_at_the_address_is_told():
    routes = ControllerRoutes(Endpoint("127.0.0.1", 1), token=TOKEN)
    with pytest.raises(ServerUnavailable, match="No server listens"):
        start(routes, within_s=0.3)
    routes.close()


def test_a_stranger_is_told_at_once(controller):
    routes = ControllerRoutes(controller.endpoint, token="00" * 16)
    with pytest.raises(ProtocolError, match="token"):
        start(routes, within_s=600.0)
    routes.close()


def test_closing_ends_a_question_that_waits(controller, routes):
    controller.announce(all_at(0, 1, lease=1))
    start(routes)
    routes.close()
    assert not routes._thread.is_alive()
