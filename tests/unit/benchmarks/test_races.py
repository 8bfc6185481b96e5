"""Races: when they end, and what is made of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import manyhands as mh
from benchmarks.contestants.laps import Lap
from benchmarks.contestants.race import LAPS, OneCycleAfterALap, PartOfMnist
from benchmarks.contestants.racers import Race, Racer
from benchmarks.harness.crew import Crew


class Runner:
    """A job that gets ten percent better in every lap, which takes it two seconds."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._accuracy = 0.0

    def start(self, seed: int) -> None:
        self._accuracy = 50.0 + seed

    def lap(self) -> Lap:
        self._accuracy += 10
        return Lap(1000, 2.0 + self._rank)

    def accuracy(self) -> float:
        return self._accuracy if self._rank == 0 else 0.0


def test_a_race_ends_with_the_lap_that_reaches_the_target() -> None:
    with Racer("runner", Crew("runner", Runner, 2)) as racer:
        race = racer.race(75.0, limit_s=100.0)

    assert race.accuracy == [60.0, 70.0, 80.0]
    assert race.seconds == [3.0, 6.0, 9.0]  # a lap is as long as its slowest member's
    assert race.images == 3000
    assert race.reached(75.0)


def test_a_race_that_never_gets_there_ends_at_its_limit() -> None:
    with Racer("runner", Crew("runner", Runner, 1)) as racer:
        race = racer.race(100.5, limit_s=5.0)

    assert race.seconds == [2.0, 4.0, 6.0]
    assert not race.reached(100.5)


def test_a_race_starts_anew_every_time_from_the_weights_of_its_seed() -> None:
    with Racer("runner", Crew("runner", Runner, 1)) as racer:
        races = [racer.race(55.0, limit_s=100.0, seed=seed) for seed in (0, 0, 1)]

    assert races[0] == races[1]
    assert races[2].accuracy == [61.0]


def test_a_races_figures_hold_its_whole_curve() -> None:
    figures = Race([2.0, 4.0], [90.0, 98.5], 4000).figures(98.5)

    assert figures["reached"] is True
    assert figures["images_per_s"] == 1000.0
    assert (figures["after_s"], figures["accuracy"]) == ([2.0, 4.0], [90.0, 98.5])


@pytest.mark.parametrize("steps_a_lap", [10, 100])
def test_the_rate_is_zero_in_the_first_lap_and_then_makes_one_cycle(steps_a_lap: int) -> None:
    schedule = OneCycleAfterALap(cycle_laps=10.0)

    def rate(laps: float) -> float:
        return schedule(round(laps * steps_a_lap), LAPS * steps_a_lap)

    assert [rate(0), rate(0.5), rate(1)] == [0, 0, 0]
    assert rate(1.5) == pytest.approx(0.5)
    assert rate(2) == 1.0
    assert rate(6.5) == pytest.approx(0.5)
    assert rate(11) == rate(50) == 0.01  # never quite zero: late laps count as well


def test_laps_of_a_part_draw_from_the_whole() -> None:
    labels = torch.arange(100) % 10
    whole = mh.data.arrays(torch.arange(100.0).reshape(100, 1), labels, layout="plain")
    part = PartOfMnist(whole, 20)
    everyone = np.arange(20, dtype=np.int64)

    seen = {float(x) for seed in range(60) for x in part.fetch(everyone, seed=seed)[0]}

    assert len(part) == 20
    assert seen == {float(n) for n in range(100)}


@pytest.mark.parametrize("seed", [0, 5])
def test_the_same_seed_draws_the_same_images(seed: int) -> None:
    whole = mh.data.arrays(torch.arange(100.0).reshape(100, 1), torch.zeros(100, dtype=torch.int64))
    part = PartOfMnist(whole, 20)
    indices = np.arange(20, dtype=np.int64)

    first, again = (part.fetch(indices, seed=seed)[0] for _ in range(2))

    assert torch.equal(first, again)
