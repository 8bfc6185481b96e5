"""Downpour with real processes: replicas and servers that are killed, added, fed and stopped."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.errors import TrainingDiverged, WorkerError
from manyhands.parameter_server.client.parameter_client import ParameterClient
from manyhands.telemetry.event_log import read_events
from tests.cluster.conftest import wait_until, workers_of
from tests.conftest import blobs


class Watch(mh.Callback):
    """Does something once, at the end of an epoch, from the driver's own thread."""

    def __init__(self, epoch: int, action) -> None:
        self.epoch = epoch
        self.action = action

    def on_epoch_end(self, run: mh.RunView) -> None:
        if run.epoch == self.epoch:
            self.action(run)


def events_of(run: Path, name: str) -> list[dict]:
    log = run / "events.jsonl"
    return [e for e in read_events(log) if e["event"] == name] if log.exists() else []


def replica_pids(run: Path) -> list[int]:
    return [event["pid"] for event in events_of(run, "ReplicaJoined")]


@pytest.fixture(autouse=True)
def _nothing_left_running() -> Iterator[None]:
    before = {process.pid for process in workers_of(os.getpid())}
    yield
    wait_until(
        lambda: {process.pid for process in workers_of(os.getpid())} <= before,
        what="every role of the run has ended",
    )


SETTINGS = [
    {"push": "gradients", "servers": 2},
    {"push": "gradients", "transport": "tcp", "compress": "int8"},
    {"push": "weights", "transport": "tcp", "compress": "topk", "keep": 0.2},
    {"push": "gradients", "staleness": "scale", "workers": 2, "replicas": 1},
    {"push": "weights", "servers": 2, "staleness": "bound", "max_staleness": 4, "warm_start": 0.5},
    {"push": "weights", "outer": mh.optim.Outer(lr=0.7, momentum=0.5, delay=2)},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values()))[:40])
def test_it_learns(make_trainer, settings) -> None:
    strategy = mh.Downpour(**{"replicas": 2, "push_every": 2, "fetch_every": 2, **settings})
    result = make_trainer(strategy=strategy).fit(blobs(2048), validation=blobs(seed=1), epochs=6)
    assert result.metrics["accuracy"] > 0.9
    assert all(math.isfinite(record["train_loss"]) for record in result.history)


def test_every_sample_is_trained_on_once_per_epoch(make_trainer, tmp_path: Path) -> None:
    make_trainer(strategy=mh.Downpour(replicas=2)).fit(blobs(1000), epochs=3)
    assert [e["samples"] for e in events_of(tmp_path / "run", "EpochEnded")] == [1000] * 3


def test_a_killed_replica_is_replaced_and_its_pieces_are_trained_by_others(
    make_trainer, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    killer = Watch(1, lambda view: os.kill(replica_pids(run)[0], signal.SIGKILL))
    trainer = make_trainer(strategy=mh.Downpour(replicas=2), callbacks=[killer])
    result = trainer.fit(blobs(4096), validation=blobs(seed=1), epochs=6)
    (lost,) = events_of(run, "ReplicaLost")
    assert "SIGKILL" in lost["reason"]
    assert lost["replaced_by"] in replica_pids(run)
    assert len(result.history) == 6
    assert result.metrics["accuracy"] > 0.9


def test_replicas_are_added_and_removed_while_it_runs(make_trainer, tmp_path: Path) -> None:
    from manyhands.strategies.downpour_driver.session import DownpourSession

    run, answers = tmp_path / "run", []
    sessions: list[DownpourSession] = []
    start = mh.Downpour.start

    class Noted(mh.Downpour):
        __slots__ = ()

        def start(self, job):
            sessions.append(start(self, job))
            return sessions[-1]

    def change(view: mh.RunView) -> None:
        command = {1: "add", 4: "remove"}.get(view.epoch)
        if command:
            answers.append(sessions[0].command({"command": command, "count": 1}))
        if view.epoch == 2:
            wait_until(lambda: len(sessions[0]._crew.places) == 2, what="it joined")

    class Changing(mh.Callback):
        def on_epoch_end(self, view: mh.RunView) -> None:
            change(view)

    trainer = make_trainer(strategy=Noted(replicas=1), callbacks=[Changing()])
    trainer.fit(blobs(4096), epochs=12)
    assert [answer["ok"] for answer in answers] == [True, True]
    assert [e["replica"] for e in events_of(run, "ReplicaJoined")] == [0, 1]
    assert not events_of(run, "ReplicaLost")
    assert "replica 1 left as asked" in [e["message"] for e in events_of(run, "Note")]
    assert sessions[0].command({"command": "frobnicate"})["ok"] is False


def test_servers_that_are_all_lost_with_nothing_written_back_end_the_run_with_a_sentence(
    make_trainer, tmp_path: Path
) -> None:
    run = tmp_path / "run"

    def kill_servers(view: mh.RunView) -> None:
        # By name: a replica that has not joined yet is no server either.
        servers = [p for p in workers_of(os.getpid()) if p.cmdline()[-3].startswith("server ")]
        assert len(servers) == 2
        for server in servers:
            os.kill(server.pid, signal.SIGKILL)

    trainer = make_trainer(
        strategy=mh.Downpour(replicas=2, servers=2, write_back_s=None),
        callbacks=[Watch(1, kill_servers)],
    )
    with pytest.raises(WorkerError, match=r"Every copy of \d+ buckets .* resume"):
        trainer.fit(blobs(2048), epochs=200)
    resumed = make_trainer(strategy=mh.Downpour(replicas=2), run_dir=None)
    result = resumed.fit(blobs(2048), validation=blobs(seed=1), epochs=6, resume=run)
    assert result.metrics["accuracy"] > 0.9


class Odd(nn.Module):
    """Tied weights, BatchNorm, an embedding, a frozen layer and a buffer, in no straight line."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16, sparse=sparse)
        self.norm = nn.BatchNorm1d(16)
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(16, 16)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(16, 4)
        self.register_buffer("scale", torch.tensor(1.0))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embedding(words).mean(1))
        x = self.second(torch.relu(self.first(x))) + x
        return self.head(torch.tanh(self.frozen(x)) * self.scale + x)


def sentences(samples: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (samples,), generator=generator)
    noise = torch.randint(50, (samples, 6), generator=generator)
    own = labels[:, None] * 12 + torch.randint(12, (samples, 6), generator=generator)
    return torch.where(torch.rand(samples, 6, generator=generator) < 0.7, own, noise), labels


@pytest.mark.parametrize("push", ["gradients", "weights"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_an_odd_module_trains(make_trainer, push: str, sparse: bool) -> None:
    torch.manual_seed(0)
    model = Odd(sparse)
    frozen = model.frozen.weight.clone()
    trainer = make_trainer(
        model,
        optimizer=mh.optim.Adagrad(lr=0.05),
        strategy=mh.Downpour(replicas=2, servers=2, push=push, push_every=2, fetch_every=2),
    )
    result = trainer.fit(sentences(4096), validation=sentences(1024, seed=1), epochs=6)
    assert result.metrics["accuracy"] > 0.85
    assert model.second.weight is model.first.weight
    assert torch.equal(model.frozen.weight, frozen)
    assert not torch.equal(model.norm.running_mean, torch.zeros(16))
    assert int(model.norm.num_batches_tracked) > 0


def test_factors_train_like_deltas(make_trainer, tmp_path: Path) -> None:
    accuracies = {}
    for form in ("factors", "delta"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 4))
        trainer = make_trainer(
            model,
            strategy=mh.Downpour(replicas=2, forms={"0.weight": form, "2.weight": form}),
            run_dir=tmp_path / form,
        )
        result = trainer.fit(blobs(2048), validation=blobs(seed=1), epochs=5)
        accuracies[form] = result.metrics["accuracy"]
        notes = [event["message"] for event in events_of(tmp_path / form, "Note")]
        assert any(form in note for note in notes)
    assert min(accuracies.values()) > 0.9


def test_a_loss_that_is_not_finite_ends_the_run(make_trainer) -> None:
    points, labels = blobs(512)
    points[77] = 3e38
    with pytest.raises(TrainingDiverged) as error:
        make_trainer(strategy=mh.Downpour(replicas=2)).fit(
            (points, labels), epochs=4, shuffle=False
        )
    assert 77 in error.value.indices


def test_what_a_users_step_raises_reaches_the_user(make_trainer) -> None:
    def step(model: nn.Module, batch) -> torch.Tensor:
        if threading.current_thread() is not threading.main_thread():
            raise KeyError("no such thing")
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    with pytest.raises(WorkerError, match="no such thing"):
        make_trainer(step=step, loss=None, strategy=mh.Downpour(replicas=2)).fit(blobs(), epochs=2)


def test_the_average_is_what_gets_validated(make_trainer) -> None:
    trainer = make_trainer(strategy=mh.Downpour(replicas=2), ema=0.9)
    result = trainer.fit(blobs(2048), validation=blobs(seed=1), epochs=5)
    assert result.metrics["accuracy"] > 0.9


def test_resuming_goes_on_with_the_servers_state(make_trainer, tmp_path: Path) -> None:
    rule = mh.optim.Adagrad(lr=0.1)
    strategy = mh.Downpour(replicas=2, servers=2)
    make_trainer(strategy=strategy, optimizer=rule, ema=0.9).fit(blobs(2048), epochs=3)
    fewer = mh.Downpour(replicas=1, servers=1)
    trainer = make_trainer(strategy=fewer, optimizer=rule, ema=0.9, run_dir=None)
    result = trainer.fit(blobs(2048), validation=blobs(seed=1), epochs=5, resume=tmp_path / "run")
    assert len(result.history) == 5
    assert result.metrics["accuracy"] > 0.9


def test_resuming_goes_on_counting_updates(
    make_trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adam corrects the bias of its averages by that count."""
    counted: list[int] = []
    given: list[int] = []
    get_states, set_states = ParameterClient.get_states, ParameterClient.set_states

    def watched_get(client: ParameterClient, count: int, updates=None) -> list:
        states = get_states(client, count, updates)
        counted.append(int(updates.min()))
        return states

    def watched_set(client: ParameterClient, states, updates=None) -> None:
        set_states(client, states, updates)
        given.extend(updates.tolist())

    monkeypatch.setattr(ParameterClient, "get_states", watched_get)
    monkeypatch.setattr(ParameterClient, "set_states", watched_set)
    strategy = mh.Downpour(replicas=1, push="gradients")
    settings = {"strategy": strategy, "optimizer": mh.optim.Adam(lr=0.01)}
    make_trainer(**settings).fit(blobs(2048), epochs=2)
    last = counted[-1]
    trainer = make_trainer(**settings, run_dir=None)
    trainer.fit(blobs(2048), epochs=3, resume=tmp_path / "run")

    assert set(given) == {last}
    assert counted[-1] > last > 0


DRIVER = """
    import torch, sys
    from torch import nn
    import manyhands as mh
    trainer = mh.Trainer(nn.Linear(20, 4), loss=nn.CrossEntropyLoss(),
                         optimizer=mh.optim.SGD(lr=0.01), batch_size=8, run_dir=sys.argv[1],
                         strategy=mh.Downpour(replicas=2, servers=2))
    trainer.fit((torch.randn(4000, 20), torch.randint(4, (4000,))), epochs=10000)
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_however_the_driver_ends_nothing_survives_it(tmp_path: Path, ending: int) -> None:
    run = tmp_path / "run"
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(DRIVER))
    driver = subprocess.Popen(
        [sys.executable, str(script), str(run)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: len(replica_pids(run)) == 2, what="both replicas train")
        roles = workers_of(driver.pid)
        assert len(roles) == 5  # the controller too
        driver.send_signal(ending)
        driver.wait(90)
        wait_until(
            lambda: not any(psutil.pid_exists(role.pid) and role.is_running() for role in roles),
            what="servers, replicas and the controller have ended",
            deadline_s=60,
        )
    finally:
        driver.kill()
        driver.wait()


def test_who_finds_nothing_left_of_an_epoch_goes_on_with_the_next(
    make_trainer, tmp_path: Path
) -> None:
    slow, went_on = tmp_path / "slow", tmp_path / "went on"
    trained: list[int] = []

    def step(model: nn.Module, batch) -> torch.Tensor:
        if threading.current_thread() is not threading.main_thread():
            if not trained:
                try:
                    slow.touch(exist_ok=False)
                except FileExistsError:
                    pass
                else:
                    wait_until(went_on.exists, what="the other replica is in the next epoch")
            trained.append(len(batch[1]))
            if sum(trained) > 2048:
                went_on.touch()
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    trainer = make_trainer(step=step, loss=None, strategy=mh.Downpour(replicas=2, workers=1))
    trainer.fit(blobs(2048), epochs=2)
    assert [e["samples"] for e in events_of(tmp_path / "run", "EpochEnded")] == [2048] * 2


def test_an_error_in_the_last_piece_of_an_epoch_is_told(make_trainer) -> None:
    points, labels = blobs(64)
    labels[-1] = 99  # found by the worker, while its prefetcher waits for another piece
    trainer = make_trainer(strategy=mh.Downpour(replicas=1), metrics=())
    with pytest.raises((WorkerError, TrainingDiverged)):
        trainer.fit((points, labels), epochs=1, shuffle=False)


def test_factors_of_a_piece_that_is_no_multiple_of_a_push_get_through(make_trainer) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4))
    forms = {"0.weight": "factors", "2.weight": "factors"}
    strategy = mh.Downpour(replicas=1, push_every=7, fetch_every=7, forms=forms)
    result = make_trainer(model, strategy=strategy, batch_size=8).fit(
        blobs(96), validation=blobs(seed=1), epochs=12
    )
    assert result.metrics["accuracy"] > 0.8


class RefusesToTrainInEvaluation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(20, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.training or not torch.is_grad_enabled(), "trained in evaluation mode"
        return self.layer(x)


def test_a_successor_started_during_validation_trains_in_training_mode(
    make_trainer, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    killed: list[int] = []

    def kill_one(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        pids = replica_pids(run)
        if pids and not killed:
            killed.append(pids[0])
            os.kill(pids[0], signal.SIGKILL)
            wait_until(lambda: len(workers_of(os.getpid())) >= 3, what="a successor starts")
        return 0.0

    trainer = make_trainer(
        RefusesToTrainInEvaluation(), strategy=mh.Downpour(replicas=2), metrics=[kill_one]
    )
    trainer.fit(blobs(8192), validation=blobs(seed=1), epochs=20)
    assert killed
    assert len(replica_pids(run)) == 3


@pytest.mark.parametrize("push_every", [1, 8])
def test_weights_decay_as_often_as_there_are_steps(make_trainer, push_every: int) -> None:
    model = nn.Linear(20, 4, bias=False)
    nn.init.ones_(model.weight)
    trainer = make_trainer(
        model,
        loss=None,
        step=lambda model, batch: model(batch[0]).sum() * 0.0,
        optimizer=mh.optim.SGD(lr=0.1, weight_decay=0.01),
        strategy=mh.Downpour(replicas=1, workers=1, push="gradients", push_every=push_every),
    )
    trainer.fit(blobs(32 * 256), epochs=2)
    # A push of many steps decays by their sum, a little more than by one after the other: on a busy
    # machine a push stands for dozens. Once a push instead of once a step would leave over 0.9.
    assert float(model.weight.detach().mean()) == pytest.approx(0.999**512, rel=0.05)
