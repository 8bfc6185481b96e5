"""Snapshots and their average: one question at a time, and the decay that was asked for."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from torch import nn

from manyhands.parameter_server.client.held_weights import HeldWeights
from manyhands.parameter_server.shard_map import ParameterSpec, make_shard_map
from manyhands.replica.flat_weights import FlatLayout
from manyhands.strategies.downpour_driver.snapshots import MovingAverage, Snapshots
from manyhands.strategies.strategy import EMA


class Client:
    """Servers in this process; notices when two threads ask at once."""

    def __init__(self, floats: int) -> None:
        self.weights = np.zeros(floats, np.float32)
        self.shard_map = make_shard_map([ParameterSpec("weight", (2, 3))], servers=1, lanes=1)
        self.asking = threading.Lock()
        self.asked_at_once = False

    def fetch(self, held: HeldWeights) -> None:
        self.ask(lambda: np.copyto(held.weights, self.weights))

    def get_states(self, count: int, updates: Any = None) -> list[Any]:
        self.ask(lambda: threading.Event().wait(0.002))
        return [self.weights.copy() for _ in range(count)]

    def ask(self, work: Any) -> None:
        self.asked_at_once |= not self.asking.acquire(blocking=False)
        work()
        if self.asking.locked():
            self.asking.release()


def parts(steps: list[int]) -> tuple[nn.Linear, Client, Snapshots, MovingAverage]:
    model = nn.Linear(3, 2, bias=False)
    client = Client(16)
    snapshots = Snapshots(client, FlatLayout(model, [0], 16))  # type: ignore[arg-type]
    average = MovingAverage(
        EMA(0.5), snapshots, torch.zeros(16), lambda: steps[0], lambda error: None
    )
    return model, client, snapshots, average


def test_a_snapshot_fills_the_model() -> None:
    model, client, snapshots, _ = parts([0])
    client.weights[:6] = np.arange(6)
    snapshots.into(model)
    assert model.weight.flatten().tolist() == [0, 1, 2, 3, 4, 5]


def test_the_decay_covers_the_steps_since_the_last_sample() -> None:
    steps = [1000]
    _, client, _, average = parts(steps)
    client.weights[:] = 1.0
    steps[0] += 3
    average.catch_up()
    average.catch_up()  # no step since: nothing moves
    assert float(average.line[0]) == 1 - 0.5**3


def test_average_and_checkpoint_do_not_ask_at_once() -> None:
    steps = [0]
    _, client, snapshots, average = parts(steps)

    def go_on() -> None:
        for _ in range(30):
            steps[0] += 1
            average.catch_up()

    thread = threading.Thread(target=go_on)
    thread.start()
    for _ in range(30):
        snapshots.states(1)
    thread.join()
    assert not client.asked_at_once
