"""A controller in this process, on a registry that misbehaves in ways a real one rarely does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from manyhands.controller.bulletin import unpacked
from manyhands.controller.controller import PLACEMENT_KEY, Buckets, Controller
from manyhands.controller.impressions import Impressions
from manyhands.controller.leadership import LEADER_KEY
from manyhands.controller.settings import ControllerSettings
from manyhands.controller.sqlite_registry import SqliteRegistry
from manyhands.errors import RegistryUnavailable, ServerUnavailable
from manyhands.parameter_server.placement import Placement
from manyhands.transport.endpoint import Endpoint
from tests.cluster.conftest import wait_until
from tests.controller.placements import MB, first
from tests.controller.test_attendance import beat

BUCKETS = Buckets(homes={b: b % 3 for b in range(6)}, loads=dict.fromkeys(range(6), MB))


class LosesAnswers(SqliteRegistry):
    """Writes, and then says that it could not be reached, every other time."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.lost = 0
        self._turn = 0

    def put(self, key: str, *rest: Any, **words: Any) -> int | None:
        written = super().put(key, *rest, **words)
        self._turn += 1
        if self._turn % 2 == 0 and written is not None:
            self.lost += 1
            raise RegistryUnavailable("the answer got lost")
        return written


class Speaker:
    """Says heartbeats for servers that are alive, whenever it is asked to."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.alive = {0: "a", 1: "a", 2: "a"}
        self.placement: Placement | None = None

    def speak(self) -> None:
        for server, incarnation in self.alive.items():
            known = self.placement
            door = asdict(Endpoint("127.0.0.1", 5000 + server))
            words = {
                "server": server,
                "incarnation": incarnation,
                "endpoint": door,
                "replication": door,
                "host": "one",
                "known": 0 if known is None else known.version,
                "in_step": [] if known is None else self._in_step(known, server),
                "suspects": [],
                "progress": {},
            }
            answer = self.controller.handle("heartbeat", words, f"wire {server}")
            if answer["placement"] is not None:
                self.placement = Placement.from_json(answer["placement"])

    def until(self, condition: Callable[[Placement], bool], *, what: str) -> Placement:
        def spoken() -> bool:
            self.speak()
            return self.placement is not None and condition(self.placement)

        wait_until(spoken, what=what)
        assert self.placement is not None
        return self.placement

    @staticmethod
    def _in_step(known: Placement, server: int) -> list[list[int]]:
        return [
            [bucket, joining.server, joining.since, place.lease]
            for bucket, place in known.buckets.items()
            if place.primary == server
            for joining in place.joining
        ]


@contextmanager
def controller(registry: SqliteRegistry, **settings: Any) -> Iterator[Speaker]:
    words = {"servers": 3, "copies": 3} | settings
    running = Controller(registry, ControllerSettings(**words), BUCKETS, name="under test")
    with running:
        wait_until(lambda: registry.get(LEADER_KEY) is not None, what="it leads")
        yield Speaker(running)
    registry.close()


def is_whole(placement: Placement) -> bool:
    return all(len(p.mirrors) == 2 and not p.joining for p in placement.buckets.values())


def without_1(placement: Placement) -> bool:
    return all(1 not in place.copies for place in placement.buckets.values())


def test_writes_whose_answers_get_lost_are_told_once_they_are_read(tmp_path: Path) -> None:
    registry = LosesAnswers(tmp_path / "registry.db")
    with controller(registry) as speaker:
        speaker.until(is_whole, what="a first placement")
        for round_ in range(3):
            del speaker.alive[1]
            speaker.until(without_1, what="server 1 is left out")
            speaker.alive[1] = f"process {round_}"
            speaker.until(is_whole, what="server 1 is back")
        assert registry.lost > 1
        stored = registry.get(PLACEMENT_KEY)
        assert stored is not None
        assert unpacked(stored.value).version >= speaker.placement.version


def test_a_leader_that_was_replaced_unawares_writes_nothing(tmp_path: Path) -> None:
    registry = SqliteRegistry(tmp_path / "registry.db")
    with controller(registry, leader_s=300.0) as speaker:  # it looks after its lease every 75 s
        placement = speaker.until(is_whole, what="a first placement")
        registry.put(LEADER_KEY, b"a rival")
        del speaker.alive[1]

        def refused() -> bool:
            try:
                speaker.speak()
            except ServerUnavailable as error:
                return "a rival leads" in str(error)
            return False

        wait_until(refused, what="it has tried to write, looked, and stands by")
        stored = registry.get(PLACEMENT_KEY)
        assert stored is not None
        assert unpacked(stored.value) == placement
        registry.delete(LEADER_KEY)
        wait_until(lambda: not refused(), what="it leads again when the rival is gone")
        speaker.until(without_1, what="it decides what it had to leave")


def test_a_leader_whose_key_was_deleted_leads_on(tmp_path: Path) -> None:
    registry = SqliteRegistry(tmp_path / "registry.db")
    with controller(registry, leader_s=300.0) as speaker:
        speaker.until(is_whole, what="a first placement")
        assert registry.delete(LEADER_KEY)
        del speaker.alive[1]
        speaker.until(without_1, what="it decides under a new term")


def test_a_placement_that_was_deleted_is_written_again(tmp_path: Path) -> None:
    registry = SqliteRegistry(tmp_path / "registry.db")
    with controller(registry) as speaker:
        before = speaker.until(is_whole, what="a first placement")
        assert registry.delete(PLACEMENT_KEY)
        del speaker.alive[1]
        after = speaker.until(without_1, what="it goes on from what it knows")
        assert after.version > before.version
        assert registry.get(PLACEMENT_KEY) is not None


def test_a_registry_that_is_gone_is_named_in_the_status(tmp_path: Path) -> None:
    """As a controller finds it whose predecessor wrote to a directory that was deleted since."""
    registry = SqliteRegistry(tmp_path / "gone" / "registry.db")
    running = Controller(registry, ControllerSettings(servers=1, copies=1), BUCKETS, name="new")

    def trouble() -> str:
        return str(running.handle("status", {}, "wire")["trouble"])

    with running:
        wait_until(lambda: "could not be used" in trouble(), what="it says so")
        (tmp_path / "gone").mkdir()
        wait_until(lambda: trouble() == "", what="it is well again")
    registry.close()


@pytest.mark.parametrize("gap_s", [0.1, 30.0])
def test_only_time_in_which_this_process_ran_counts_as_silence(gap_s: float) -> None:
    placement = first(3, 6)
    impressions = Impressions(ControllerSettings(servers=3, copies=3), BUCKETS.loads)
    now = 100.0
    for _ in range(20):
        for server in range(3):
            impressions.hear(beat(server), f"wire {server}", now)
        now += 0.1
    impressions.attendance.hang_up("wire 2", now)
    now += gap_s  # nobody hears anything: a pause of ours, or not
    assert impressions.impression(placement, now).view.alive == {0, 1, 2}
    for _ in range(3):
        now += 0.1
        impressions.hear(beat(0), "wire 0", now)
    assert impressions.impression(placement, now).view.alive == {0, 1}
    for _ in range(20):
        now += 0.1
        impressions.hear(beat(0), "wire 0", now)
    assert impressions.impression(placement, now).view.alive == {0}


def test_a_request_before_anything_is_placed_is_to_be_made_again(tmp_path: Path) -> None:
    with (
        controller(SqliteRegistry(tmp_path / "registry.db")) as speaker,
        pytest.raises(ServerUnavailable, match="ask again"),
    ):
        speaker.controller.handle("drain", {"server": 0}, "wire")


def test_closing_wakes_those_who_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyhands.controller.controller._LONGEST_POLL_S", 1e6)
    with controller(SqliteRegistry(tmp_path / "registry.db")) as speaker:
        placement = speaker.until(is_whole, what="a first placement")
        poll = {"after": placement.version, "wait_s": 1e6}
        answers: list[Any] = []
        waiting = threading.Thread(
            target=lambda: answers.append(speaker.controller.handle("placement", poll, "wire"))
        )
        waiting.start()
    waiting.join(60)
    assert answers == [{"placement": None}]
