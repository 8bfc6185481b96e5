"""Alternating measurement: order, ratios inside a round, their spread."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.harness.rounds import Rounds, Spread, alternate, calls_per_second


def test_everyone_takes_one_turn_in_every_round_and_the_order_rotates() -> None:
    turns: list[str] = []

    def contestant(name: str) -> Callable[[], float]:
        def turn() -> float:
            turns.append(name)
            return float(len(turns))

        return turn

    measured = alternate({name: contestant(name) for name in "abc"}, rounds=4)

    assert "".join(turns) == "abcbcacababc"
    assert measured.rates == {
        "a": (1.0, 6.0, 8.0, 10.0),
        "b": (2.0, 4.0, 9.0, 11.0),
        "c": (3.0, 5.0, 7.0, 12.0),
    }


def test_a_ratio_is_formed_within_each_round() -> None:
    # The machine gets ten times slower in the second round: the ratio must not notice.
    measured = Rounds({"ours": (300.0, 30.0, 300.0), "peer": (100.0, 10.0, 150.0)})

    ratio = measured.ratio("ours", "peer")

    assert (ratio.median, ratio.low, ratio.high) == (3.0, 2.0, 3.0)


def test_the_best_peer_is_the_fastest_by_median_not_by_its_luckiest_round() -> None:
    measured = Rounds({"steady": (10.0, 10.0, 10.0), "lucky": (99.0, 1.0, 1.0)})

    assert measured.best(["steady", "lucky"]) == "steady"


def test_a_spread_holds_the_middle_and_the_extremes() -> None:
    spread = Spread.of([4.0, 1.0, 2.0, 3.00049])

    assert spread == Spread(median=pytest.approx(2.500245), low=1.0, high=4.0)
    assert spread.figures(digits=2) == {"median": 2.5, "low": 1.0, "high": 4.0}


def test_a_rate_counts_calls_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.25, 0.5, 0.75, 1.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))

    assert calls_per_second(lambda: None, seconds=1.0) == 4.0
