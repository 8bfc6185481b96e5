"""The retry policy: what is sent again, where, for how long, and what is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from manyhands import kernels
from manyhands.errors import ProtocolError, ServerUnavailable, StaleRoute
from manyhands.messages import Refusal
from manyhands.parameter_server.client import delivery, lane_link
from manyhands.parameter_server.client.delivery import Delivery, Work
from manyhands.parameter_server.client.dialling import Dialling
from manyhands.parameter_server.client.links import Links
from manyhands.parameter_server.client.parts import ChunkSet, Outcomes, Part
from manyhands.parameter_server.client.routes import (
    ChangingRoutes,
    Route,
    Routes,
    RouteTable,
    StaticRoutes,
    Target,
)
from manyhands.parameter_server.shard_map import ParameterSpec, make_shard_map
from manyhands.transport.endpoint import Endpoint

SHARDS = make_shard_map(
    [ParameterSpec(f"p{n}", (20,)) for n in range(6)], servers=1, lanes=2, version=4
)
CHUNKS = ChunkSet(SHARDS, SHARDS.chunks)
NUMBERS = [chunk.number for chunk in SHARDS.chunks]


def target(server: int, incarnation: str = "first") -> Target:
    return Target(server, incarnation, Endpoint("127.0.0.1", 7 + server))


class FakeLink:
    """A connection to a server; a call on it may wait until it is closed."""

    pushed_bytes, pulled_bytes, waited_s = 10, 1, 0.5

    def __init__(self, endpoint: Endpoint, lane: int) -> None:
        self.server, self.lane = endpoint.port - 7, lane
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()

    def hang(self) -> None:
        assert self.closed.wait(30), "nobody cut the link"
        raise ConnectionResetError


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> list[FakeLink]:
    """The connections made, in order."""
    made: list[FakeLink] = []

    def dial(dialling: object, endpoint: Endpoint, lane: int, *rest: object) -> FakeLink:
        made.append(FakeLink(endpoint, lane))
        return made[-1]

    monkeypatch.setattr(lane_link, "dial", dial)
    return made


def table(version: int, server: Callable[[int], int | None], lease: int = 1) -> RouteTable:
    """Each bucket's route by a function of the bucket."""
    buckets = {chunk.bucket for chunk in SHARDS.chunks}
    found = {bucket: server(bucket) for bucket in buckets}
    return RouteTable(
        version, {b: Route(target(s), lease) for b, s in found.items() if s is not None}
    )


class Sent:
    """Everything that was tried: server, chunk and lease, in order."""

    def __init__(self, script: Callable[[Any, Part, Outcomes], None] | None = None) -> None:
        self.script = script or (lambda link, part, outcomes: None)
        self.tried: list[tuple[int, int, int]] = []
        self.done: list[int] = []
        self._lock = threading.Lock()

    def work(self, link: Any, part: Part, outcomes: Outcomes) -> None:
        with self._lock:
            tried = zip(part.numbers.tolist(), part.leases.tolist(), strict=True)
            self.tried += [(link.server, number, lease) for number, lease in tried]
        try:
            self.script(link, part, outcomes)
            outcomes.fill(1)
        finally:
            with self._lock:
                self.done += part.numbers[outcomes == 1].tolist()


class Rig:
    """A group's delivery over fake connections."""

    def __init__(self, routes: Routes, retry_s: float = 30.0) -> None:
        self.stopping = threading.Event()
        self.links = Links(SHARDS, SHARDS.chunks, Dialling(token="", client=1), routes)
        self.delivery = Delivery(
            SHARDS, self.links, routes, retry_s=retry_s, stopping=self.stopping, name="test"
        )

    def carry_out(self, work: Work) -> None:
        self.delivery.carry_out(CHUNKS, work)

    def interrupt(self) -> None:
        self.stopping.set()
        self.links.cut()


@pytest.fixture
def static() -> StaticRoutes:
    return StaticRoutes(SHARDS, [Endpoint("127.0.0.1", 7)])


@pytest.fixture
def changing() -> ChangingRoutes:
    """All chunks at server 0 under lease 1."""
    routes = ChangingRoutes()
    routes.replace(table(1, lambda bucket: 0))
    return routes


def failing(*errors: Exception) -> Sent:
    """Fails once with each of these and then succeeds."""
    left: Iterator[Exception] = iter(errors)
    lock = threading.Lock()

    def script(link: Any, part: Part, outcomes: Outcomes) -> None:
        with lock:
            error = next(left, None)
        if isinstance(error, kernels.Refused):  # of the first chunk; the others are answered
            outcomes.fill(1)
            outcomes[0], error.chunk = -error.code, part.numbers[0]
        if error is not None:
            raise error

    return Sent(script)


def refusal(code: Refusal, chunk: int = 0) -> kernels.Refused:
    error = kernels.Refused("No.")
    error.code, error.chunk = int(code), chunk
    return error


def in_a_thread(rig: Rig, sent: Sent) -> tuple[threading.Thread, list[BaseException]]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            rig.carry_out(sent.work)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_work_that_loses_its_connection_is_done_again_on_another(dialled, static):
    rig = Rig(static)
    sent = failing(ConnectionResetError(), TimeoutError(), BrokenPipeError())
    rig.carry_out(sent.work)
    assert sorted(sent.done) == NUMBERS
    assert sum(link.closed.is_set() for link in dialled) == 3
    assert rig.links.counters.reconnects == 3
    rig.carry_out(Sent().work)
    assert len(dialled) == 5  # the last of each lane is kept
    rig.delivery.close()
    rig.delivery.close()
    assert all(link.closed.is_set() for link in dialled)
    assert rig.links.counters.pushed_bytes == 50


def test_a_server_that_stays_away_is_named(dialled, static):
    sent = failing(*[ConnectionResetError()] * 1000)
    with pytest.raises(ServerUnavailable, match=r"at 127\.0\.0\.1:7 has not answered for 0\.05 s"):
        Rig(static, retry_s=0.05).carry_out(sent.work)
    assert len(dialled) >= 4


def test_a_server_that_can_not_be_reached_is_tried_again(dialled, static):
    sent = failing(ServerUnavailable("nobody"), ServerUnavailable("nobody"))
    Rig(static).carry_out(sent.work)
    assert sorted(sent.done) == NUMBERS


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (Refusal.NOT_FINITE, ProtocolError),
        (Refusal.NOT_ALLOWED, ProtocolError),
        (Refusal.UNKNOWN_CHUNK, StaleRoute),
        (Refusal.STALE_LEASE, StaleRoute),
    ],
)
def test_without_a_controller_no_refusal_is_tried_again(dialled, static, code, expected):
    sent = failing(refusal(code))
    with pytest.raises(expected, match=r"127\.0\.0\.1:7 refused: No\.") as told:
        Rig(static).carry_out(sent.work)
    if expected is ProtocolError:
        assert told.value.refusal == code
    assert len(sent.tried) == len(NUMBERS)
    assert not any(link.closed.is_set() for link in dialled)


def test_a_refusal_that_closes_the_connection_drops_it(dialled, static):
    with pytest.raises(ProtocolError):
        Rig(static).carry_out(failing(refusal(Refusal.TOO_LARGE)).work)
    assert [link.closed.is_set() for link in dialled] == [True, False]


def test_a_mistake_of_ours_is_raised_as_it_is(dialled, static):
    with pytest.raises(ValueError, match="ours"):
        Rig(static).carry_out(failing(ValueError("ours")).work)


@pytest.mark.parametrize("way", ["static", "changing"])
def test_stopping_ends_a_wait_between_attempts(dialled, way, request):
    rig = Rig(request.getfixturevalue(way), retry_s=600.0)
    thread, errors = in_a_thread(rig, failing(*[ConnectionResetError()] * 100_000))
    wait_until(lambda: len(dialled) >= 6)
    rig.interrupt()
    thread.join(30)
    assert not thread.is_alive()
    assert "closing" in str(errors[0])


def test_interrupting_ends_a_call_that_hangs_and_every_later_one(dialled, static):
    rig = Rig(static, retry_s=600.0)
    thread, errors = in_a_thread(rig, Sent(lambda link, part, outcomes: link.hang()))
    wait_until(lambda: len(dialled) == 1)
    rig.interrupt()
    thread.join(30)
    assert "closing" in str(errors[0])
    with pytest.raises(ServerUnavailable, match="closing"):
        rig.carry_out(Sent().work)


def test_only_what_was_not_carried_out_is_sent_again(dialled, static):
    def script(link: Any, part: Part, outcomes: Outcomes) -> None:
        if len(dialled) <= 2:
            outcomes[0] = 1
            raise ConnectionResetError

    sent = Sent(script)
    Rig(static).carry_out(sent.work)
    assert sorted(sent.done) == NUMBERS
    assert len(sent.tried) < 2 * len(NUMBERS)


def test_chunks_follow_their_buckets_with_their_leases(dialled, changing):
    rig, moved = Rig(changing), {chunk.bucket for chunk in SHARDS.chunks[::2]}
    rig.carry_out((before := Sent()).work)
    changing.replace(table(2, lambda bucket: int(bucket in moved), lease=5))
    rig.carry_out((after := Sent()).work)
    assert {(server, lease) for server, _, lease in before.tried} == {(0, 1)}
    assert sorted(after.tried) == sorted(
        (int(chunk.bucket in moved), chunk.number, 5) for chunk in SHARDS.chunks
    )
    assert rig.links.counters.reroutes == 0


def test_a_call_that_hangs_goes_on_as_soon_as_the_route_changes(dialled, changing):
    def script(link: Any, part: Part, outcomes: Outcomes) -> None:
        if link.server < 2:
            outcomes[0] = 1  # this one was answered before the server fell silent
            link.hang()

    rig, sent = Rig(changing, retry_s=600.0), Sent(script)
    thread, errors = in_a_thread(rig, sent)
    for version in (2, 3):  # changes twice under the same call
        wait_until(lambda v=version: any(link.server == v - 2 for link in dialled))
        changing.replace(table(version, lambda bucket, v=version: v - 1, lease=version))
    thread.join(30)
    assert errors == []
    assert sorted(sent.done) == NUMBERS  # each once
    assert {(server, lease) for server, _, lease in sent.tried} <= {(0, 1), (1, 2), (2, 3)}
    assert rig.links.counters.reroutes >= 2
    assert rig.links.counters.reconnects == 0


def test_a_call_to_chunks_that_did_not_move_is_left_alone(dialled, changing):
    lanes = {lane: SHARDS.chunk_lanes.index(lane) for lane in range(2)}
    other = SHARDS.chunks[lanes[1]].bucket

    def script(link: Any, part: Part, outcomes: Outcomes) -> None:
        if part.lane == 0:
            released.wait(30)
            assert not link.closed.is_set()

    released = threading.Event()
    rig, sent = Rig(changing), Sent(script)
    thread, errors = in_a_thread(rig, sent)
    wait_until(lambda: len(sent.tried) > 0)
    changing.replace(table(2, lambda bucket: int(bucket == other)))
    released.set()
    thread.join(30)
    assert errors == []
    assert sorted(sent.done) == NUMBERS


def test_a_primary_that_does_not_know_it_yet_is_asked_again(dialled, changing):
    sent = failing(*[refusal(Refusal.STALE_LEASE)] * 8)
    rig = Rig(changing)
    rig.carry_out(sent.work)
    assert sorted(sent.done) == NUMBERS
    assert len(dialled) == 2  # over the same connections


def test_refused_and_acknowledged_chunks_in_one_call(dialled, changing):
    """One acknowledged, one not finite, one unanswered, the others at a server that lost them."""

    def script(link: Any, part: Part, outcomes: Outcomes) -> None:
        if link.server == 1:
            return
        outcomes.fill(-Refusal.STALE_LEASE)
        outcomes[0] = 1
        outcomes[2] = 0
        if part.lane == 0:
            outcomes[1] = -Refusal.NOT_FINITE
            raise refusal(Refusal.NOT_FINITE, int(part.numbers[1]))
        changing.replace(table(2, lambda bucket: 1, lease=2))
        raise refusal(Refusal.STALE_LEASE, int(part.numbers[1]))

    sent = Sent(script)
    with pytest.raises(ProtocolError) as told:
        Rig(changing).carry_out(sent.work)
    assert told.value.refusal == Refusal.NOT_FINITE
    bad = [chunk.number for chunk in SHARDS.chunks if SHARDS.lane_of(chunk) == 0][1]
    assert sorted(sent.done) == [number for number in NUMBERS if number != bad]


def test_a_bucket_that_nobody_serves_is_waited_for(dialled, changing):
    first = SHARDS.chunks[0].bucket
    changing.replace(table(2, lambda bucket: None if bucket == first else 0))
    rig, sent = Rig(changing, retry_s=600.0), Sent()
    thread, errors = in_a_thread(rig, sent)
    homeless = sum(chunk.bucket == first for chunk in SHARDS.chunks)
    wait_until(lambda: len(sent.done) == len(NUMBERS) - homeless)
    changing.replace(table(3, lambda bucket: 2, lease=3))
    thread.join(30)
    assert errors == []
    assert sorted(sent.done) == NUMBERS
    changing.replace(table(4, lambda bucket: None))
    with pytest.raises(ServerUnavailable, match="nobody is at present"):
        Rig(changing, retry_s=0.05).carry_out(Sent().work)


def test_time_begins_anew_with_every_answer_and_every_new_route(dialled, changing, monkeypatch):
    """Two rounds in a row without either would be too many; the clock is the test's."""
    now = [0.0]
    monkeypatch.setattr(delivery, "time", SimpleNamespace(monotonic=lambda: now[0]))
    rounds: list[str] = []

    def script(link: Any, part: Part, outcomes: Outcomes) -> None:
        rounds.append(step := steps[min(len(rounds), len(steps) - 1)])
        now[0] += 20.0
        if step == "answer":
            outcomes[0] = 1
        if step == "route":
            version = len(rounds) + 1
            changing.replace(table(version, lambda bucket: version % 2, lease=version))
        raise ConnectionResetError

    steps = ["answer", "route", "route", "answer", "vain"]
    one_lane = ChunkSet(SHARDS, [c for c in SHARDS.chunks if SHARDS.lane_of(c) == 0])
    sent = Sent(script)
    with pytest.raises(ServerUnavailable, match="for 30 s"):
        Rig(changing).delivery.carry_out(one_lane, sent.work)
    assert rounds == [*steps, "vain"]
    assert len(sent.done) == 2


def test_servers_that_serve_nothing_any_more_are_hung_up_on(dialled, changing):
    rig = Rig(changing)
    rig.carry_out(Sent().work)
    changing.replace(table(2, lambda bucket: 1))
    rig.carry_out(Sent().work)
    assert [link.closed.is_set() for link in dialled] == [True, True, False, False]
    assert rig.links.counters.pushed_bytes == 40


def test_a_restarted_server_is_another(dialled, changing):
    rig = Rig(changing)
    rig.carry_out(Sent().work)
    again = Route(target(0, "second"), 2)
    changing.replace(RouteTable(2, {chunk.bucket: again for chunk in SHARDS.chunks}))
    rig.carry_out(Sent().work)
    assert [link.closed.is_set() for link in dialled] == [True, True, False, False]


def test_large_parts_go_at_the_same_time(dialled):
    shards = make_shard_map([ParameterSpec("large", (4, 1 << 18))], servers=1, lanes=2)
    routes = StaticRoutes(shards, [Endpoint("127.0.0.1", 7)])
    links = Links(shards, shards.chunks, Dialling(token="", client=1), routes)
    calls = Delivery(shards, links, routes, retry_s=1.0, stopping=threading.Event(), name="test")
    together = threading.Barrier(2)

    def work(link: Any, part: Part, outcomes: Outcomes) -> None:
        together.wait(30)

    calls.carry_out(ChunkSet(shards, shards.chunks), work)
    assert np.unique([link.lane for link in dialled]).tolist() == [0, 1]
    calls.close()
