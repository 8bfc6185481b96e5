"""When a role that died is started again."""

from __future__ import annotations

from manyhands.strategies.downpour_driver.restarts import MOST_DEATHS, WITHIN_S, RestartHistory


def test_the_first_death_is_mended_at_once_and_later_ones_later():
    history = RestartHistory()
    pauses = [history.pause_after_death(now) for now in range(MOST_DEATHS)]
    assert pauses[0] == 0.0
    assert pauses[1:-1] == sorted(pauses[1:-1])
    assert pauses[1] > 0
    assert pauses[-1] is None


def test_deaths_that_are_far_apart_are_mended_for_ever():
    history = RestartHistory()
    apart = WITHIN_S / (MOST_DEATHS - 2)
    assert None not in [history.pause_after_death(n * apart) for n in range(100)]
    assert [history.pause_after_death(1e6 + n * 2 * WITHIN_S) for n in range(9)] == [0.0] * 9
