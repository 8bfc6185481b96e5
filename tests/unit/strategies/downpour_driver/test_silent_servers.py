"""A server that says nothing is ended only when nothing is lost with it."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from manyhands.parameter_server.placement import BucketPlace, Placement
from manyhands.strategies.downpour_driver.notices import Notices
from manyhands.strategies.downpour_driver.server_crew import ServerCrew


class _Process:
    def __init__(self) -> None:
        self.killed = False

    def kill(self) -> None:
        self.killed = True


@pytest.mark.parametrize(("holder", "ended"), [(0, False), (1, True)])
def test_a_silent_server_is_ended_only_without_copies(holder: int, ended: bool) -> None:
    process = _Process()
    role: Any = SimpleNamespace(process=process, channel=None, pid=1)
    crew = ServerCrew(lambda number: role, SimpleNamespace(), Notices(), lambda: None)  # type: ignore[arg-type]
    crew._place(0, first=True)
    place = crew._servers[0]
    place.report, place.heard = SimpleNamespace(), time.monotonic() - 100  # type: ignore[assignment]
    crew.look()
    assert not process.killed  # nobody knows yet who holds what
    placement = Placement(version=1, members={}, buckets={5: BucketPlace(holder, 1)})
    crew.note(replace(placement))
    crew.look()
    assert process.killed == ended
