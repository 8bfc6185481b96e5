"""Workers are killed for real, while they train; the run goes on."""

import gc
import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.telemetry.event_log import read_events
from tests.cluster.conftest import workers_of
from tests.conftest import blobs


class Assassin(mh.Callback):
    """Kills a worker after the first epoch, between epochs."""

    def __init__(self) -> None:
        self.killed: list[int] = []

    def on_epoch_end(self, view: mh.RunView) -> None:
        if view.epoch == 0:
            victim = workers_of(os.getpid())[0]
            self.killed.append(victim.pid)
            victim.send_signal(signal.SIGKILL)


class DiesOnce(nn.Module):
    """Kills its own process in the middle of an epoch, once in the whole run."""

    def __init__(self, marker: str) -> None:
        super().__init__()
        self.marker = marker
        self.driver = os.getpid()
        self.calls = 0
        self.layer = nn.Linear(20, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if os.getpid() != self.driver and self.calls == 4:  # in the middle of a piece
            self._die_unless_somebody_did()
        return self.layer(x)

    def _die_unless_somebody_did(self) -> None:
        try:
            marker = os.open(self.marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return
        os.write(marker, str(os.getpid()).encode())
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("strategy", [mh.Hogwild(workers=2), mh.Synchronous(workers=2)])
def test_a_worker_killed_between_epochs_is_reported_and_replaced(make_trainer, strategy):
    assassin = Assassin()
    trainer = make_trainer(strategy=strategy, callbacks=[assassin])
    result = trainer.fit(blobs(512), validation=blobs(128, seed=1), epochs=3)
    events = read_events(result.run_dir / "events.jsonl")
    lost = [event for event in events if event["event"] == "WorkerLost"]
    assert [event["pid"] for event in lost] == assassin.killed
    assert "SIGKILL" in lost[0]["reason"]
    assert lost[0]["replaced_by"] not in assassin.killed
    assert result.reason == "finished"
    assert result.accuracy > 0.9


@pytest.mark.parametrize("strategy", [mh.Hogwild(workers=2), mh.Synchronous(workers=2)])
def test_a_worker_killed_mid_epoch_loses_no_sample(make_trainer, strategy, tmp_path):
    marker = tmp_path / "died"
    trainer = make_trainer(DiesOnce(str(marker)), strategy=strategy)
    result = trainer.fit(blobs(1000), epochs=1)
    assert marker.exists()
    events = read_events(result.run_dir / "events.jsonl")
    ended = next(event for event in events if event["event"] == "EpochEnded")
    assert ended["samples"] == 1000
    assert [e["pid"] for e in events if e["event"] == "WorkerLost"] == [int(marker.read_text())]


class DiesAlways(DiesOnce):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if os.getpid() != self.driver:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layer(x)


def test_workers_that_keep_dying_end_the_run_with_a_sentence(make_trainer, tmp_path):
    trainer = make_trainer(DiesAlways(str(tmp_path / "x")), strategy=mh.Hogwild(workers=1))
    with pytest.raises(mh.errors.WorkerError, match=r"died 4 times .* SIGKILL"):
        trainer.fit(blobs(100), epochs=1)
    assert workers_of(os.getpid()) == []


class RaisesInWorkers(DiesOnce):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if os.getpid() != self.driver:
            raise KeyError("the user's own mistake")
        return self.layer(x)


@pytest.mark.parametrize("strategy", [mh.Hogwild(workers=2), mh.Synchronous(workers=2)])
def test_an_error_in_the_users_code_ends_the_run_and_every_worker(make_trainer, strategy, tmp_path):
    trainer = make_trainer(RaisesInWorkers(str(tmp_path / "x")), strategy=strategy)
    with pytest.raises(mh.errors.WorkerError, match="the user's own mistake") as caught:
        trainer.fit(blobs(100), epochs=1)
    assert "in forward" in str(caught.value.__cause__)
    assert workers_of(os.getpid()) == []
    assert all(p.device.type == "cpu" for p in trainer.model.parameters())


@pytest.mark.parametrize(
    "strategy", [mh.Synchronous(), mh.Synchronous(workers=2), mh.Hogwild(workers=2)]
)
def test_a_loss_that_is_not_a_number_names_step_and_batch(make_trainer, strategy):
    points, _ = blobs(320)
    model = nn.Sequential(nn.Linear(20, 4))
    trainer = make_trainer(model, strategy=strategy, loss=poisoned)
    with pytest.raises(mh.errors.TrainingDiverged) as caught:
        trainer.fit((points, torch.arange(320)), epochs=2, shuffle=False)
    error = caught.value
    assert error.epoch == 0
    assert error.step == 6
    assert 200 in error.indices  # a share of the batch, or all of it
    assert set(error.indices) <= set(range(192, 224))
    assert "step 6 (epoch 0, batch 6, samples 192, 193" in str(error)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert workers_of(os.getpid()) == []


def poisoned(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Not a number for the batch that holds sample 200."""
    loss = outputs.square().mean()
    return loss * float("nan") if bool((targets == 200).any()) else loss


def shared_regions() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:manyhands")


def channels() -> int:
    opened = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return sum("socket:" in name or "memfd:" in name for name in opened)


def test_nothing_is_left_running_or_mapped_after_a_run(make_trainer):
    gc.collect()  # what earlier tests' exceptions hold on to
    before = shared_regions(), channels()
    trainer = make_trainer(strategy=mh.Hogwild(workers=2))
    trainer.fit(blobs(100), epochs=1)
    assert workers_of(os.getpid()) == []
    assert (shared_regions(), channels()) == before
    assert workers_of(os.getpid()) == []
