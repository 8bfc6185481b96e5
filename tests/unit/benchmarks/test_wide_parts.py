"""Parts of the benchmarks of wide layers: P@1, curves, ratios, shares and aims."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import manyhands as mh
from benchmarks import slide_accuracy, slide_distributed, slide_speed
from benchmarks.contestants.laps import Lap
from benchmarks.contestants.wide_course import (
    WideSet,
    batches,
    precision_at_1,
    random_only,
    some_of,
)
from benchmarks.contestants.wide_phases import Phases
from benchmarks.contestants.wide_race import Curve
from benchmarks.contestants.wide_training import LAPS, after_a_lap
from benchmarks.harness.rounds import Rounds
from manyhands.data.sparse_source import SparseSource
from manyhands.sparse import CSR


def source_of(labels: list[list[int]], width: int) -> SparseSource:
    """Sample i has feature i alone."""
    samples = len(labels)
    return SparseSource(CSR.from_dense(torch.eye(samples)), CSR.from_lists(labels, width))


def test_p_at_1_counts_samples_whose_best_label_is_their_own() -> None:
    source = source_of([[0, 2], [1], [], [0]], 3)
    # The hidden layer is the sample itself; label 2 wins for samples 0 and 3, label 1 for 1 and 2.
    weight = torch.tensor([[0.0, 0, 0, 0], [0, 1, 1, 0], [1, 0, 0, 1]])
    parameters = [torch.eye(4), torch.zeros(4), weight, torch.zeros(3)]

    assert precision_at_1(parameters, source) == 50.0  # samples 0 and 1


def test_p_at_1_is_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    source = source_of([[i % 5] for i in range(20)], 5)
    shapes = [(20, 4), (4,), (5, 4), (5,)]
    parameters = [torch.randn(shape, generator=generator) for shape in shapes]
    whole = precision_at_1(parameters, source)

    monkeypatch.setattr("benchmarks.contestants.wide_course._LOGITS_AT_ONCE", 5 * 3)

    assert 0 < whole < 100
    assert precision_at_1(parameters, source) == whole


def test_an_epoch_has_every_sample_of_whole_batches_once() -> None:
    source = source_of([[0]] * 11, 1)

    first, second = (batches(source, 4, epoch=epoch, seed=0) for epoch in (0, 1))

    assert [len(batch) for batch in first] == [4, 4]
    assert len(set(np.concatenate(first).tolist())) == 8
    assert np.concatenate(first).tolist() != np.concatenate(second).tolist()


def test_some_samples_are_spread_over_all_and_keep_their_labels() -> None:
    source = some_of(source_of([[0], [1], [2], [3], [4]], 5), 3)

    x, y = source.fetch(np.array([0, 1, 2]), seed=0)
    assert isinstance(y, CSR)
    assert (x.columns.tolist(), y.columns.tolist()) == ([0, 2, 4], [0, 2, 4])


def curve_of(*points: tuple[float, float]) -> Curve:
    curve = Curve()
    for seconds, precision in points:
        curve.add(Lap(1000, seconds), precision)
    return curve


def test_the_time_to_a_p_at_1_lies_on_the_line_between_two_turns() -> None:
    curve = curve_of((10.0, 20.0), (10.0, 40.0), (10.0, 30.0), (10.0, 50.0))

    assert curve.seconds == [0.0, 10.0, 20.0, 30.0, 40.0]
    assert curve.seconds_to(30.0) == pytest.approx(15.0)
    assert curve.seconds_to(40.0) == pytest.approx(20.0)  # when it first had it
    assert curve.seconds_to(45.0) == pytest.approx(35.0)
    assert curve.seconds_to(50.1) is None
    assert curve.best() == 50.0
    assert curve.rates == [100.0] * 4


def phases(**changes: float) -> Phases:
    values = {"samples": 1000, "seconds": 2.0, "refresh_s": 0.2, "active": 10.0}
    values |= {"bytes_per_sample": 4e6, "flops_per_sample": 1e6} | changes
    return Phases(phase_s={"hashing": 0.5, "updating": 1.0}, **values)  # type: ignore[arg-type]


def test_phases_are_shares_of_the_time_and_of_what_the_machine_gives() -> None:
    ceilings = slide_speed.Ceilings(bytes_per_s=4e9, flops_per_s=1e9)

    found = slide_speed.phase_figures(phases(), ceilings)

    assert found["shares_of_time"] == {
        "hashing": 0.25,
        "updating": 0.5,
        "reading samples": 0.25,
        "refreshing, beside": 0.1,
    }
    assert found["samples_per_s"] == 500.0
    assert (found["gigabytes_per_s"], found["share_of_bandwidth"]) == (2.0, 0.5)
    assert (found["gigaflops_per_s"], found["share_of_arithmetic"]) == (0.5, 0.5)


def test_a_ceiling_is_the_most_that_was_seen() -> None:
    before, after = slide_speed.Ceilings(1.0, 20.0), slide_speed.Ceilings(2.0, 10.0)

    assert before.or_more(after) == slide_speed.Ceilings(2.0, 20.0)


def measured(
    ours: Curve, sampled: Curve, drawn: Curve | None = None, **rates: float
) -> slide_speed.Measured:
    return slide_speed.Measured(
        course=slide_speed.QUICK[0].course,
        rounds=Rounds({name: (rates.get(name, 1.0),) for name in slide_speed.TITLES}),
        curves={
            "lsh": ours,
            "lsh_bfloat16": Curve(),
            "random_only": drawn or Curve(),
            "full_softmax": Curve(),
            "sampled_softmax": sampled,
        },
        phases={"batch": phases()},
    )


def test_speed_is_judged_by_the_full_softmax_and_by_what_two_reached() -> None:
    race = measured(
        curve_of((10.0, 40.0)),
        curve_of((10.0, 20.0), (10.0, 18.0)),
        curve_of((20.0, 50.0)),
        lsh=50.0,
        full_softmax=2.0,
    )
    ceilings = slide_speed.Ceilings(bytes_per_s=4.1e9, flops_per_s=1e9)

    found = slide_speed.figures(race, ceilings)

    assert found["ratios"]["full_softmax"]["median"] == 25.0
    assert found["p@1_reached_by_both"] == 19.6  # nearly the lower of the two bests
    assert found["seconds_to_it"] == {
        "lsh": 4.9,
        "lsh_bfloat16": None,
        "random_only": 7.84,
        "full_softmax": None,
        "sampled_softmax": 9.8,
    }
    assert found["times_sooner_than_sampled"] == 2.0
    assert found["times_sooner_than_random_only"] == 1.6  # to 39.2%
    assert found["met"] == {
        "times_full_softmax": True,
        "ahead_of_sampled": True,
        "ahead_of_random_only": False,  # which went on to 50%
        "share_of_bandwidth": False,
    }


def test_who_is_first_at_a_low_p_at_1_and_ends_lower_is_not_ahead() -> None:
    race = measured(curve_of((4.0, 10.0)), curve_of((10.0, 20.0)))
    ceilings = slide_speed.Ceilings(bytes_per_s=1e9, flops_per_s=1e9)

    found = slide_speed.figures(race, ceilings)

    assert found["times_sooner_than_sampled"] == pytest.approx(1.25)
    assert found["times_sooner_than_random_only"] is None  # nobody has got anywhere
    assert found["met"]["ahead_of_sampled"] is False


def test_sets_drawn_at_random_are_as_large_as_ours() -> None:
    course = slide_accuracy.QUICK.course
    samples = WideSet(*[source_of([[2]], 40_000)] * 2)

    drawn = random_only(course, samples).sampling

    assert drawn is not None
    assert (drawn.hardest, drawn.limit) == (0, 0)
    assert drawn.floor == mh.sparse.Sampling().resolved(40_000, "batch").floor


def test_the_first_lap_moves_nothing() -> None:
    steps_a_lap = 40

    rates = [after_a_lap(step, steps_a_lap * LAPS) for step in (0, 39, 40, 4000)]

    assert rates == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize(("ours", "met"), [(49.0, True), (48.8, False)])
def test_accuracy_must_be_within_a_point_of_the_full_softmax(ours: float, met: bool) -> None:
    runs = [
        slide_accuracy.Run("lsh", 0, (10.0, ours), 1.0),
        slide_accuracy.Run("random_only", 0, (10.0, 47.0), 1.0),
        slide_accuracy.Run("full_softmax", 0, (60.0, 50.0), 1.0),
        slide_accuracy.Run("lsh", 1, (10.0, 49.0), 1.0),
        slide_accuracy.Run("random_only", 1, (10.0, 50.0), 1.0),
        slide_accuracy.Run("full_softmax", 1, (60.0, 50.0), 1.0),
    ]

    found = slide_accuracy.figures(runs)

    assert found["points_behind_full_softmax"]["low"] == 1.0
    assert found["points_ahead_of_random_only"]["low"] == -1.0
    assert found["met"] is met


def test_a_rate_falls_to_nothing() -> None:
    assert [slide_accuracy.falling(step, 4) for step in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_bytes_are_weighed_both_ways_and_per_sample() -> None:
    plan = slide_distributed.QUICK
    weights = 256 * 50
    runs = {
        "alone": slide_distributed.Run("alone", 100, 1.0, (50.0,), 0, 0, weights),
        "rows": slide_distributed.Run("rows", 100, 1.0, (48.5,), 300, 700, weights),
        "dense": slide_distributed.Run("dense", 10, 1.0, (5.0,), 1000, 2000, weights),
    }
    wider = {**runs, "rows": slide_distributed.Run("rows", 100, 1.0, (1.0,), 100, 200, weights)}

    found = slide_distributed.figures(runs, wider, plan)

    assert (found["times_fewer_bytes"], found["wider"]["times_fewer_bytes"]) == (30.0, 100.0)
    assert plan.course.batch == 256
    assert found["times_fewer_bytes_at_one_pace"] == 10.0  # 50 pushed and 50 fetched, against 10
    assert found["points_behind_one_process"] == 1.5
    assert found["runs"]["rows"]["pushed_bytes_per_sample"] == 3
    assert found["met"] is False
