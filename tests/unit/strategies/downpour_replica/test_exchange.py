"""What a replica sends is what its workers did, nothing lost and nothing twice."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from manyhands.parameter_server.client.held_weights import HeldWeights
from manyhands.parameter_server.shard_map import Form, ParameterSpec, make_shard_map
from manyhands.replica.factors import FactorPair
from manyhands.strategies.downpour_replica.exchange import (
    Exchange,
    GradientOutbox,
    StepClock,
    Stretch,
    WeightOutbox,
    dense_ranges,
    summed_rows,
)


class Server:
    """A server in this process: adds up, and may round what it is sent."""

    server = 0

    def __init__(self, floats: int, *, coarse: bool = False) -> None:
        self.weights = np.zeros(floats, np.float32)
        self.ranges = (np.array([0]), np.array([floats]))
        self.coarse = coarse
        self.calls: list[tuple[str, float, int]] = []
        self.factors: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
        self.rows: list[dict[int, Any]] = []

    def push(self, values: Any, *, rate: float, steps: int, sent: Any) -> None:
        self.calls.append(("push", rate, steps))
        seen = np.round(values) if self.coarse else values
        if sent is not None:
            sent[:] = seen
        self.weights -= np.float32(rate) * seen

    def pull(self, out: Any) -> None:
        self.calls.append(("pull", 0.0, 0))
        out[:] = self.weights

    def push_pull(self, values: Any, out: Any, *, rate: float, steps: int, sent: Any) -> None:
        self.push(values, rate=rate, steps=steps, sent=sent)
        self.pull(out)

    def push_factors(self, parameter: int, a: Any, d: Any, *, rate: float, steps: int) -> None:
        self.factors.append((a, d))

    def push_rows(self, updates: Any, *, rate: float, steps: int) -> None:
        self.rows.append(updates)

    def fetch(self, held: HeldWeights) -> dict[int, Any]:
        self.pull(held.weights[:4])
        return {2: np.array([1, 3])}


def zeros(floats: int) -> np.ndarray[Any, Any]:
    return np.zeros(floats, np.float32)


def weight_outbox(local: Any, *, sent: Any = None) -> WeightOutbox:
    floats = len(local)
    return WeightOutbox(local, local.copy(), zeros(floats), zeros(floats), sent, rate=1.0)


STRETCH = Stretch(steps=4, rate=0.5)


def test_moved_weights_of_two_replicas_add_up_everywhere() -> None:
    server, first, second = Server(8), zeros(8), zeros(8)
    one, two = weight_outbox(first), weight_outbox(second)
    first += 1
    second += 2
    one.exchange(server, STRETCH, fetch=True)
    two.exchange(server, STRETCH, fetch=True)
    first += 3  # while it has not yet seen the other's move
    one.exchange(server, STRETCH, fetch=True)
    assert server.weights == pytest.approx(6)
    assert first == pytest.approx(6)
    two.fetch(server)
    assert second == pytest.approx(6)


def test_what_is_pushed_without_fetching_is_pushed_once() -> None:
    server, local = Server(4), zeros(4)
    outbox = weight_outbox(local)
    for _ in range(3):
        local += 1
        outbox.exchange(server, STRETCH, fetch=False)
    outbox.exchange(server, STRETCH, fetch=False)
    assert server.weights == pytest.approx(3)


def test_what_compression_drops_of_moved_weights_is_sent_later() -> None:
    server, local = Server(4, coarse=True), zeros(4)
    outbox = weight_outbox(local, sent=zeros(4))
    for _ in range(10):
        local += 0.3
        outbox.exchange(server, STRETCH, fetch=True)
    assert abs(server.weights - 3.0).max() <= 0.5
    assert local == pytest.approx(3.0, abs=1e-5)


MAP = make_shard_map(
    [
        ParameterSpec("bias", (4,)),
        ParameterSpec("fc.weight", (5, 3), Form.FACTORS),
        ParameterSpec("embedding", (4, 1), Form.ROWS),
    ],
    servers=1,
    lanes=1,
)


def gradient_outbox(
    local: Any = None, *, sent: Any = None, most_queued: int = 8, **options: Any
) -> GradientOutbox:
    """Of `local` and the lines the first four floats are the bias, all that travels dense."""
    local = zeros(MAP.floats) if local is None else local
    return GradientOutbox(
        MAP,
        HeldWeights(MAP, local),
        zeros(MAP.floats)[:4],
        zeros(MAP.floats)[:4],
        sent,
        rate_of=lambda stretch: stretch.rate,
        most_queued=most_queued,
        **{"most_rows": 8, **options},
    )


def test_gradients_of_all_workers_are_summed_and_sent_once() -> None:
    server, local = Server(4), zeros(MAP.floats)
    outbox = gradient_outbox(local)
    for gradient in (1.0, 2.0):
        sums = np.full(4, gradient, np.float32)
        outbox.add(sums)
        assert not sums.any()
    outbox.exchange(server, STRETCH, fetch=True)
    assert local[:4] == pytest.approx(-1.5)  # 3 at the rate 0.5, fetched
    outbox.exchange(server, STRETCH, fetch=False)
    assert server.weights == pytest.approx(-1.5)


def test_what_compression_drops_of_gradients_is_sent_later() -> None:
    server = Server(4, coarse=True)
    outbox = gradient_outbox(sent=zeros(4))
    for _ in range(10):
        outbox.add(np.full(4, 0.3, np.float32))
        outbox.exchange(server, Stretch(1, 1.0), fetch=False)
    assert abs(server.weights + 3.0).max() <= 0.5


def test_factors_travel_joined_and_a_full_queue_makes_a_push_due() -> None:
    server, clock = Server(4), StepClock()
    outbox = gradient_outbox(most_queued=2)
    exchange = exchange_of(server, outbox, clock, push_every=100, fetch_every=100)
    pair = FactorPair(torch.ones(2, 3), torch.ones(2, 5))
    for _ in range(2):
        outbox.add_factors({"fc.weight": [pair]})
        clock.advance(np.array([0.1]))
    exchange.start()
    waiting = threading.Thread(target=outbox.wait_for_room, args=(clock,))
    waiting.start()
    waiting.join(10)
    assert not waiting.is_alive()  # there is room as soon as the push is under way
    assert exchange.flush(10)
    assert [a.shape for a, _ in server.factors] == [(4, 3)]
    exchange.close()
    exchange.join(10)


def test_a_worker_waits_while_too_many_rows_are_queued() -> None:
    server, clock = Server(4), StepClock()
    outbox = gradient_outbox(most_rows=3)
    waiting = threading.Thread(target=outbox.wait_for_room, args=(clock,))
    for _ in range(3):
        assert not clock.urgent
        outbox.add_rows("embedding", torch.tensor([1]), torch.ones(1, 1))
        clock.advance(np.array([0.1]))
    waiting.start()
    while clock.urgent < 3:
        assert waiting.is_alive()
    outbox.exchange(server, STRETCH, fetch=False)
    waiting.join(10)
    assert not waiting.is_alive()
    ((_, values),) = server.rows[0].values()
    assert values.tolist() == [[3.0]]


def test_rows_that_came_are_told_by_name() -> None:
    came = []
    outbox = gradient_outbox(rows_came=lambda name, rows: came.append((name, rows.tolist())))
    outbox.fetch(Server(4))
    assert came == [("embedding", [1, 3])]


def test_the_lines_are_touched_where_parameters_travel_dense() -> None:
    specs = [("a", (3,), Form.DELTA), ("b", (20,), Form.DELTA), ("e", (9, 2), Form.ROWS)]
    specs += [("c", (2, 2), Form.DELTA), ("f", (2, 2), Form.FACTORS)]
    shards = make_shard_map([ParameterSpec(*spec) for spec in specs], servers=1, lanes=1)
    assert shards.starts == (0, 16, 48, 80, 96)
    assert dense_ranges(shards) == [slice(0, 36), slice(80, 84)]


def test_rows_of_several_batches_are_each_sent_once() -> None:
    server = Server(4)
    outbox = gradient_outbox()
    outbox.add_rows("embedding", torch.tensor([3, 1]), torch.tensor([[3.0], [1.0]]))
    outbox.add_rows("embedding", torch.tensor([3]), torch.tensor([[4.0]]))
    outbox.exchange(server, STRETCH, fetch=False)
    (update,) = server.rows
    ((rows, values),) = update.values()
    assert dict(zip(rows.tolist(), values[:, 0].tolist(), strict=True)) == {1: 1.0, 3: 7.0}
    assert summed_rows([(torch.tensor([2]), torch.ones(1, 1))])[0].tolist() == [2]


def exchange_of(server: Server, outbox: Any, clock: StepClock, **settings: int) -> Exchange:
    def fail(error: BaseException) -> None:
        raise error

    every = {"push_every": 1, "fetch_every": 1, **settings}
    return Exchange(server, outbox, clock, fail=fail, **every)  # type: ignore[arg-type]


def test_an_exchange_pushes_and_fetches_on_clocks_of_their_own() -> None:
    server, clock = Server(4), StepClock()
    exchange = exchange_of(server, gradient_outbox(), clock, push_every=2, fetch_every=4)
    exchange.start()
    for _ in range(4):
        clock.advance(np.array([0.1, 0.3]))
        assert exchange.flush(10)
    exchange.close()
    exchange.join(10)
    pushes = [call for call in server.calls if call[0] == "push"]
    assert sum(steps for _, _, steps in pushes) == 8
    assert all(rate == pytest.approx(0.2) for _, rate, _ in pushes)
    assert len([call for call in server.calls if call[0] == "pull"]) == 2


def test_a_flush_sends_what_is_less_than_a_push() -> None:
    server, clock = Server(4), StepClock()
    outbox = gradient_outbox()
    exchange = exchange_of(server, outbox, clock, push_every=100, fetch_every=100)
    exchange.start()
    outbox.add(np.ones(4, np.float32))
    clock.advance(np.array([1.0]))
    assert exchange.flush(10)
    assert server.weights == pytest.approx(-1)
    exchange.close()
    exchange.join(10)
    assert not exchange.is_alive()
