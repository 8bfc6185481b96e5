"""Schedules are pure functions of progress."""

import pytest

from manyhands import optim
from manyhands.errors import ConfigError


def test_one_cycle_rises_to_the_peak_and_falls_to_the_end():
    schedule = optim.OneCycle(warmup=0.1, start=0.04, end=0.0)
    factors = [schedule(step, 101) for step in range(101)]
    assert factors[0] == pytest.approx(0.04)
    assert factors[10] == pytest.approx(1.0)
    assert factors[100] == pytest.approx(0.0)
    assert factors[:11] == sorted(factors[:11])
    assert factors[10:] == sorted(factors[10:], reverse=True)


def test_one_cycle_without_warmup_starts_at_the_peak():
    assert optim.OneCycle(warmup=0.0)(0, 10) == pytest.approx(1.0)


def test_cosine_and_steps_and_constant():
    assert optim.Cosine(end=0.1)(9, 10) == pytest.approx(0.1)
    assert optim.Cosine()(5, 11) == pytest.approx(0.5)
    assert [round(optim.Steps()(step, 101), 4) for step in (0, 50, 75, 100)] == [1, 0.1, 0.01, 0.01]
    assert optim.Constant()(3, 10) == 1.0


@pytest.mark.parametrize("schedule", [optim.OneCycle(), optim.Cosine(), optim.Steps()])
@pytest.mark.parametrize("total", [0, 1, 2])
def test_short_runs_divide_by_nothing(schedule, total):
    assert 0 <= schedule(0, total) <= 1


def test_nonsense_is_refused():
    with pytest.raises(ConfigError, match=r"warmup is 1\.5"):
        optim.OneCycle(warmup=1.5)
    with pytest.raises(ConfigError, match="shares of the run"):
        optim.Steps(at=(2.0,))
