"""`manyhands replicas`: asks a run under way, through the socket that the run itself opened."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from manyhands.run.config_file import write_config
from manyhands.strategies.catalogue import STRATEGIES
from manyhands.strategies.strategy import EpochSummary, Session, TrainingJob
from manyhands.strategies.synchronous import SingleSession, Synchronous

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Here = Callable[..., Any]

during_an_epoch: Callable[[], None]
crew: list[dict[str, Any]]


class CrewSession(SingleSession):
    """Trains alone, and answers as if it had replicas."""

    def train_epoch(self, epoch: int) -> EpochSummary:
        during_an_epoch()
        return super().train_epoch(epoch)

    def command(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["command"] == "add":
            for _ in range(request["count"]):
                crew.append({"replica": len(crew), "pid": 100 + len(crew), "samples_per_s": 0.0})
        elif request["command"] == "remove":
            if request["count"] >= len(crew):
                return {"ok": False, "message": "At least one replica must stay."}
            del crew[-request["count"] :]
        return {"ok": True, "replicas": crew, "message": ""}


@dataclass(frozen=True, slots=True)
class Crew(Synchronous):
    name: ClassVar[str] = "crew"

    def start(self, job: TrainingJob) -> Session:
        return CrewSession(job)


class SoloSession(SingleSession):
    def train_epoch(self, epoch: int) -> EpochSummary:
        during_an_epoch()
        return super().train_epoch(epoch)


@dataclass(frozen=True, slots=True)
class Solo(Synchronous):
    name: ClassVar[str] = "solo"

    def start(self, job: TrainingJob) -> Session:
        return SoloSession(job)


@pytest.fixture(autouse=True)
def strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, "crew", Crew)  # type: ignore[arg-type]
    monkeypatch.setitem(STRATEGIES, "solo", Solo)  # type: ignore[arg-type]
    global crew
    crew = [{"replica": 0, "pid": 7, "samples_per_s": 8120.4}]


def ask_during_a_run(here: Here, strategy: str, *requests: list[str]) -> list[Any]:
    """The answers to `manyhands replicas run ...` while the run trains its only epoch."""
    global during_an_epoch
    answers: list[Any] = []

    def ask() -> None:
        answers.extend(here("replicas", "run", *request) for request in requests)

    during_an_epoch = ask
    trained = here("train", "tiny.py", "--strategy", strategy, "--epochs", "1", "--run-dir", "run")
    assert trained.exit_code == 0, trained.output
    return answers


def test_replicas_are_shown_added_and_removed(here: Here) -> None:
    requests: list[list[str]] = [[], ["--add", "2"], ["--remove", "1"], ["--remove", "2"]]
    shown, added, removed, refused = ask_during_a_run(here, "crew", *requests)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines() == [
        "replica  process  samples/s",
        "      0        7      8,120",
    ]
    assert len(added.stdout.splitlines()) == 4
    assert added.stdout.splitlines()[-1].split() == ["2", "102", "0"]
    assert len(removed.stdout.splitlines()) == 3
    assert refused.exit_code == 2
    assert refused.stderr == "manyhands: At least one replica must stay.\n"


def test_from_another_process(here: Here, command: Command) -> None:
    (answer,) = ask_during_a_run(
        lambda *arguments: (command if "replicas" in arguments else here)(*arguments), "crew", []
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[1].split() == ["0", "7", "8,120"]


def test_a_strategy_without_replicas_says_so(here: Here) -> None:
    (answer,) = ask_during_a_run(here, "solo", ["--add", "1"])
    assert answer.exit_code == 2
    assert answer.stderr == (
        "manyhands: The strategy of this run has no replicas and no servers; downpour has.\n"
    )


def test_a_run_that_cannot_listen_trains_all_the_same(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(backlog: int) -> None:
        raise PermissionError(1, "no sockets here")

    monkeypatch.setattr("manyhands.transport.control.listen_unix", refuse)
    (answer,) = ask_during_a_run(here, "crew", [])
    assert answer.exit_code == 1
    assert answer.stderr.startswith("manyhands: No run is going on in ")


def test_a_run_that_is_over_or_was_killed_says_so(here: Here, folder: Path) -> None:
    address = folder / "run" / "control"
    addresses: list[bytes] = []

    def remember(*arguments: str) -> Any:
        return (
            addresses.append(address.read_bytes()) if "replicas" in arguments else here(*arguments)
        )

    ask_during_a_run(remember, "crew", [])
    over = here("replicas", "run")
    assert not address.exists()
    address.write_bytes(addresses[0])  # as kill -9 leaves it
    killed = here("replicas", "run")
    for done in (over, killed):
        assert done.exit_code == 1
        assert done.stderr.startswith("manyhands: No run is going on in ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["replicas", "nowhere"], "There is no run directory"),
        (["replicas", "old", "--add", "1", "--remove", "1"], "give one of them"),
        (["replicas", "old", "--add", "0"], "--add"),
    ],
)
def test_is_refused_in_a_sentence(
    here: Here, folder: Path, arguments: list[str], sentence: str
) -> None:
    (folder / "old").mkdir()
    write_config(folder / "old" / "run.toml", {"epochs": 2})
    done = here(*arguments)
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
