"""Downpour loses servers, replicas and controllers, and trains on; it is killed, and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import manyhands as mh
from manyhands.cli.asking import ask_run
from manyhands.telemetry.event_log import read_events
from tests.cluster.conftest import wait_until, workers_of
from tests.conftest import blobs

ENDLESS = 100_000


def events_of(run: Path, name: str) -> list[dict]:
    log = run / "events.jsonl"
    return [e for e in read_events(log) if e["event"] == name] if log.exists() else []


class Until(mh.Callback):
    """Ends the run after the epoch in which something has come true."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        self.condition = condition

    def on_epoch_end(self, run: mh.RunView) -> None:
        if self.condition():
            run.stop_reason = "enough"


@pytest.fixture(autouse=True)
def _nothing_left_running() -> Iterator[None]:
    before = {process.pid for process in workers_of(os.getpid())}
    yield
    wait_until(
        lambda: {process.pid for process in workers_of(os.getpid())} <= before,
        what="every role of the run has ended",
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def train_until(make_trainer, condition: Callable[[], bool], **options) -> mh.Result:
    strategy = mh.Downpour(**{"replicas": 2, "servers": 3, **options})
    trainer = make_trainer(strategy=strategy, callbacks=[Until(condition)])
    return trainer.fit(blobs(4096), validation=blobs(seed=1), epochs=ENDLESS)


def copies_are_back(run: Path) -> bool:
    """Whether all copies were there again after the last loss of one."""
    log = run / "events.jsonl"
    names = [e["event"] for e in read_events(log)] if log.exists() else []
    told = [name for name in names if name in ("ServerLost", "CopiesRestored")]
    return bool(told) and told[-1] == "CopiesRestored"


def test_a_killed_server_is_replaced_and_nothing_ends(make_trainer, run: Path) -> None:
    faults = mh.FaultPlan().kill("server/1", at_push=50)
    result = train_until(make_trainer, lambda: copies_are_back(run), faults=faults)
    assert result.metrics["accuracy"] > 0.9
    (fault,) = events_of(run, "FaultInjected")
    assert fault["action"] == "kill"
    assert fault["push"] >= 50
    (lost,) = events_of(run, "ServerLost")
    assert (lost["server"], lost["restarts"]) == (1, True)
    assert "SIGKILL" in lost["reason"]
    assert fault["pids"] == [lost["pid"]]
    assert events_of(run, "PrimaryMoved")[0]["server"] == 1
    (joined,) = events_of(run, "ServerJoined")
    assert joined["server"] == 1
    assert joined["pid"] != lost["pid"]
    assert events_of(run, "CopiesRestored")[0]["copies"] == 3
    assert not events_of(run, "StoreRestored")
    assert not (run / "store").exists()  # the run is complete


def test_a_killed_controller_is_replaced_and_its_successor_mends_a_loss(
    make_trainer, run: Path
) -> None:
    faults = mh.FaultPlan().kill("controller", at_s=0).kill("server/2", at_s=2.5)
    result = train_until(make_trainer, lambda: copies_are_back(run), faults=faults)
    assert result.metrics["accuracy"] > 0.9
    (replaced,) = events_of(run, "ControllerReplaced")
    assert "SIGKILL" in replaced["reason"]
    assert replaced["replaced_by"] not in (None, replaced["pid"])
    assert [e["server"] for e in events_of(run, "ServerLost")] == [2]


def test_a_server_that_is_silent_for_a_while_is_done_without_and_comes_back(
    make_trainer, run: Path
) -> None:
    faults = mh.FaultPlan().pause("server/0", for_s=3.0)
    result = train_until(
        make_trainer, lambda: bool(events_of(run, "CopiesRestored")), faults=faults
    )
    assert result.metrics["accuracy"] > 0.9
    assert events_of(run, "PrimaryMoved")[0]["server"] == 0
    assert not events_of(run, "ServerLost")
    assert not events_of(run, "StoreRestored")


def test_two_servers_at_once_are_survived_by_the_third(make_trainer, run: Path) -> None:
    faults = mh.FaultPlan().kill("server/0", at_push=50).kill("server/2", at_push=50)
    result = train_until(make_trainer, lambda: copies_are_back(run), faults=faults)
    assert result.metrics["accuracy"] > 0.9
    assert sorted(e["server"] for e in events_of(run, "ServerLost")) == [0, 2]
    assert not events_of(run, "StoreRestored")


def test_servers_that_are_cut_off_from_each_other_go_on(make_trainer, run: Path) -> None:
    faults = mh.FaultPlan().cut("server/0", "server/1", for_s=2.0)
    result = train_until(
        make_trainer,
        lambda: (
            len(events_of(run, "FaultInjected")) == 2 and bool(events_of(run, "CopiesRestored"))
        ),
        faults=faults,
    )
    assert result.metrics["accuracy"] > 0.9
    assert [e["action"] for e in events_of(run, "FaultInjected")] == ["cut", "cut ended"]
    assert not events_of(run, "ServerLost")


def test_the_only_server_goes_on_from_what_was_written_back(make_trainer, run: Path) -> None:
    faults = mh.FaultPlan().kill("server/0", at_s=2)
    result = train_until(
        make_trainer,
        lambda: bool(events_of(run, "StoreRestored")),
        servers=1,
        write_back_s=0.5,
        faults=faults,
    )
    assert result.metrics["accuracy"] > 0.9
    (restored,) = events_of(run, "StoreRestored")
    assert (restored["servers"], restored["write_back_s"]) == ([0], 0.5)


def test_a_server_that_keeps_dying_is_given_up_and_the_others_go_on(
    make_trainer, run: Path
) -> None:
    stop = threading.Event()

    def keep_killing() -> None:
        wait_until(lambda: bool(events_of(run, "EpochEnded")), what="it trains")
        while not stop.wait(0.3):
            for process in roles_called("server 1"):
                process.kill()

    killer = threading.Thread(target=keep_killing)
    killer.start()
    try:
        result = train_until(
            make_trainer,
            lambda: any(not lost["restarts"] for lost in events_of(run, "ServerLost")),
        )
    finally:
        stop.set()
        killer.join()
    assert result.metrics["accuracy"] > 0.9
    assert "5 deaths" in events_of(run, "ServerLost")[-1]["reason"]


def test_a_death_while_the_run_starts_is_mended_too(make_trainer, run: Path) -> None:
    def kill_one_of_each() -> None:
        for name in ("controller", "server 1"):
            wait_until(lambda name=name: bool(roles_called(name)), what=f"{name} is started")
            roles_called(name)[0].kill()

    killer = threading.Thread(target=kill_one_of_each)
    killer.start()
    try:
        result = train_until(make_trainer, lambda: True)
    finally:
        killer.join()
    assert result.metrics["accuracy"] > 0.5
    assert len(events_of(run, "ServerLost")) == len(events_of(run, "ControllerReplaced")) == 1


def roles_called(name: str) -> list[psutil.Process]:
    found = []
    for process in workers_of(os.getpid()):
        with suppress(psutil.Error):
            if process.cmdline()[-3:-2] == [name]:
                found.append(process)
    return found


def test_servers_are_added_and_drained_while_it_runs(make_trainer, run: Path) -> None:
    answers: list[dict] = []

    def left() -> bool:
        notes = [note["message"] for note in events_of(run, "Note")]
        return "server 0 is empty and left as asked" in notes

    def change() -> bool:
        if not answers:
            answers.append(ask_run(run, {"command": "add_servers", "count": 1}))
        elif len(answers) == 1 and events_of(run, "ServerJoined"):
            answers.append(ask_run(run, {"command": "drain", "server": 0}))
        return left()

    result = train_until(make_trainer, change, servers=2)
    assert result.metrics["accuracy"] > 0.9
    assert [one["server"] for one in answers[0]["servers"]] == [0, 1, 2]
    assert [e["server"] for e in events_of(run, "ServerJoined")] == [2]
    assert not events_of(run, "ServerLost")
    assert not events_of(run, "StoreRestored")


def test_the_last_server_is_not_drained(make_trainer, run: Path) -> None:
    refusals: list[str] = []

    def ask() -> bool:
        try:
            ask_run(run, {"command": "drain", "server": 0})
        except mh.errors.ConfigError as error:
            refusals.append(str(error))
        return True

    train_until(make_trainer, ask, servers=1)
    assert refusals == ["Server 0 is the only one that stays: add one first."]


def test_everything_is_encrypted_off_loopback_and_survives_there_too(
    make_trainer, run: Path
) -> None:
    address = next(
        (
            entry.address
            for entries in psutil.net_if_addrs().values()
            for entry in entries
            if entry.family.name == "AF_INET" and not entry.address.startswith("127.")
        ),
        None,
    )
    if address is None:
        pytest.skip("this machine has no address but loopback")
    faults = mh.FaultPlan().kill("server/1", at_push=20)
    result = train_until(make_trainer, lambda: copies_are_back(run), faults=faults, host=address)
    assert result.metrics["accuracy"] > 0.9
    assert any("with TLS" in note["message"] for note in events_of(run, "Note"))
    assert [e["server"] for e in events_of(run, "ServerLost")] == [1]


DRIVER = """
    import sys
    import torch
    from torch import nn
    import manyhands as mh
    sys.path.insert(0, sys.argv[2])
    from tests.conftest import blobs, small_net
    trainer = mh.Trainer(small_net(), loss=nn.CrossEntropyLoss(), run_dir=sys.argv[1],
                         optimizer=mh.optim.SGD(lr=0.05, momentum=0.9), batch_size=32,
                         checkpoint_every=100_000, progress=False,
                         strategy=mh.Downpour(replicas=2, servers=3, push="gradients",
                                              write_back_s=0.2))
    trainer.fit(blobs(4096), epochs=100_000)
"""


@pytest.mark.parametrize("servers", [1, 4])
def test_a_run_that_was_killed_goes_on_from_the_store_on_other_servers(
    make_trainer, run: Path, tmp_path: Path, servers: int
) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(DRIVER))
    driver = subprocess.Popen(
        [sys.executable, str(script), str(run), str(Path(__file__).parents[2])],
        start_new_session=True,
    )
    try:
        wait_until(lambda: len(events_of(run, "EpochEnded")) >= 3, what="a few epochs are trained")
        roles = workers_of(driver.pid)
        for process in (*roles, driver):
            os.kill(process.pid, signal.SIGKILL)
        driver.wait()
        wait_until(lambda: not any(role.is_running() for role in roles), what="all are dead")
    finally:
        driver.kill()
        driver.wait()
    strategy = mh.Downpour(replicas=2, servers=servers, push="gradients")
    trainer = make_trainer(strategy=strategy, run_dir=None)
    result = trainer.fit(blobs(4096), validation=blobs(seed=1), epochs=1, resume=run)
    notes = [note["message"] for note in events_of(run, "Note")]
    assert any("Going on from what the parameter servers wrote back" in note for note in notes)
    assert result.history[0]["train_loss"] < 0.05  # the weights were trained: chance is 1.4
    assert result.metrics["accuracy"] > 0.9
