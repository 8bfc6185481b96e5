"""A registry that stays away is told of while something can be done about it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from manyhands.strategies.downpour_driver.controller_keeper import ControllerKeeper
from manyhands.strategies.downpour_driver.notices import Notices


def told(troubles: list[str]) -> list[tuple[str, bool]]:
    """What the driver tells when answers name these troubles, one after another."""
    answers = iter(troubles)
    caller: Any = SimpleNamespace(call=lambda *_, **__: {"trouble": next(answers)})
    notices = Notices()
    keeper = ControllerKeeper(lambda: SimpleNamespace(), caller, notices)  # type: ignore[arg-type,return-value]
    for _ in troubles:
        keeper._deliver("status", {})
    return [(event.message, event.warning) for event in notices.take()]


def test_a_trouble_that_stays_is_told_once_and_so_is_its_end() -> None:
    lost, back = told(["It was deleted."] * 20 + [""] * 3)
    assert lost[0].startswith("It was deleted. Training goes on")
    assert lost[1]
    assert back == ("The controller can decide again.", False)


def test_a_moment_without_a_registry_is_not_told() -> None:
    assert told(["No leader.", "No leader.", "", "No leader.", ""]) == []
