"""Hogwild on nets with a wide sparse layer: one process, threads of the native trainer."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.run.checkpoint import load_latest
from manyhands.telemetry.event_log import read_events
from tests.cluster.conftest import workers_of

FEATURES, LABELS, SAMPLES = 300, 1200, 600


def topics(samples: int = SAMPLES, *, seed: int = 0) -> Any:
    """Features in groups; the group says the label, one of a few among many."""
    random = np.random.default_rng(seed)
    groups = random.integers(0, 10, samples)
    columns = (groups[:, None] * 30 + random.integers(0, 30, (samples, 6))).astype(np.int32)
    features = mh.sparse.CSR(
        torch.arange(0, 6 * samples + 1, 6),
        torch.from_numpy(np.sort(columns).reshape(-1)),
        torch.full((6 * samples,), 6**-0.5),
        FEATURES,
    )
    labels = mh.sparse.CSR(
        torch.arange(samples + 1), torch.from_numpy((groups * 97).astype(np.int32)), None, LABELS
    )
    return mh.data.sparse(features, labels)


def wide_net(*, share: str = "batch", refresh: mh.sparse.Refresh | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        mh.sparse.SparseLinear(FEATURES, 32),
        nn.ReLU(),
        mh.sparse.LSHLinear(
            32,
            LABELS,
            share=share,
            sampling=mh.sparse.Sampling(limit=60, floor=60),
            refresh=refresh,
        ),
    )


def trainer(run_dir: Path, model: nn.Module, **options: Any) -> mh.Trainer:
    options = {
        "loss": mh.sparse.LSHSoftmaxLoss(),
        "optimizer": mh.optim.Adam(lr=0.01),
        "strategy": mh.Hogwild(workers=2),
        "metrics": (),
        "batch_size": 50,
        "run_dir": run_dir / "run",
        "progress": False,
        **options,
    }
    return mh.Trainer(model, **options)


def share_right(model: nn.Module) -> float:
    """How often the largest output for samples it hasn't seen is the label's."""
    source = topics(seed=1)
    model.eval()
    with torch.no_grad():
        chosen = model(source.features).argmax(1)
    return float((chosen == source.labels.columns).float().mean())


def notes(run_dir: Path) -> list[str]:
    events = read_events(run_dir / "events.jsonl")
    return [event["message"] for event in events if event["event"] == "Note"]


def test_one_thread_repeats_with_the_seed_of_the_run(tmp_path: Path) -> None:
    weights = []
    for run in ("first", "second"):
        model = wide_net(refresh=mh.sparse.Refresh(first=2, beside=False))
        fitting = trainer(tmp_path / run, model, strategy=mh.Hogwild(workers=1), seed=3)
        fitting.fit(topics(), epochs=1)
        weights.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))


@pytest.mark.parametrize("share", ["batch", "sample"])
def test_a_wide_net_learns_in_one_process(tmp_path: Path, share: str) -> None:
    model = wide_net(share=share)
    result = trainer(tmp_path, model).fit(topics(), epochs=6)
    assert any("2 threads, native sparse layers" in note for note in notes(result.run_dir))
    assert share_right(model) > 0.95
    assert model[0].weight.grad is None


class _Layout(mh.Callback):
    """Looks where the weights lie while the run lasts."""

    strides: Any = None

    def on_epoch_end(self, view: mh.RunView) -> None:
        self.strides = [p.stride() for p in view.model.parameters()]


def test_rows_lie_beside_their_states_while_a_run_lasts(tmp_path: Path) -> None:
    model, layout = wide_net(), _Layout()
    result = trainer(tmp_path, model, callbacks=[layout]).fit(topics(), epochs=1)
    assert layout.strides == [(96, 1), (1,), (96, 1), (1,)]
    assert all(p.is_contiguous() for p in model.parameters())
    saved = load_latest(result.run_dir / "checkpoints").checkpoint
    assert all(torch.equal(saved.model[name], p) for name, p in model.named_parameters())
    size = max(file.stat().st_size for file in result.run_dir.rglob("model.safetensors"))
    assert size < 1.1 * sum(4 * p.numel() for p in model.parameters())
    moved = saved.optimizer["2.weight.mean"]
    assert moved.shape == model[2].weight.shape
    assert bool(moved.any())


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    result = trainer(tmp_path, wide_net()).fit(topics(), epochs=2)
    model = wide_net()
    trainer(tmp_path, model).fit(topics(), epochs=6, resume=result.run_dir)
    assert share_right(model) > 0.95


@pytest.mark.parametrize("share", ["batch", "sample"])
def test_a_wide_net_learns_in_bfloat16(tmp_path: Path, share: str) -> None:
    model = wide_net(share=share)
    strategy = mh.Hogwild(workers=2, wide_weights="bfloat16")
    result = trainer(tmp_path, model, strategy=strategy).fit(topics(), epochs=6)
    assert any("bfloat16" in note for note in notes(result.run_dir))
    assert share_right(model) > 0.9
    weight = model[2].weight.detach()
    assert weight.dtype == torch.float32
    trained = (weight == weight.bfloat16().float()).all(1)
    assert int(trained.sum()) > 100  # the others were never active


def test_a_run_in_bfloat16_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    strategy = mh.Hogwild(workers=2, wide_weights="bfloat16")
    result = trainer(tmp_path, wide_net(), strategy=strategy).fit(topics(), epochs=2)
    model = wide_net()
    again = trainer(tmp_path, model, strategy=strategy)
    again.fit(topics(), epochs=6, resume=result.run_dir)
    assert share_right(model) > 0.9


def test_bfloat16_is_refused_where_nothing_trains_in_it(tmp_path: Path) -> None:
    strategy = mh.Hogwild(workers=1, wide_weights="bfloat16")
    rule = mh.optim.Adam(lr=0.01, clip_norm=1.0)
    training = trainer(tmp_path, wide_net(), strategy=strategy, optimizer=rule)
    with pytest.raises(mh.errors.ConfigError, match="gradients are clipped"):
        training.fit(topics(200), epochs=1)
    with pytest.raises(mh.errors.ConfigError, match="expected 'float32' or 'bfloat16'"):
        mh.Hogwild(wide_weights="float16")


class _Assassin(mh.Callback):
    """Kills the worker after the first epoch."""

    killed = 0

    def on_epoch_end(self, view: mh.RunView) -> None:
        if view.epoch == 0:
            worker = max(workers_of(os.getpid()), key=lambda process: process.create_time())
            self.killed = worker.pid
            worker.send_signal(signal.SIGKILL)


def test_a_killed_worker_is_replaced_and_builds_its_own_tables(tmp_path: Path) -> None:
    assassin = _Assassin()
    model = wide_net()
    result = trainer(tmp_path, model, callbacks=[assassin]).fit(topics(), epochs=6)
    lost = [
        event["pid"]
        for event in read_events(result.run_dir / "events.jsonl")
        if event["event"] == "WorkerLost"
    ]
    assert lost == [assassin.killed]
    assert share_right(model) > 0.95


def test_a_rule_without_a_fast_path_says_why_and_trains_by_autograd(tmp_path: Path) -> None:
    rule = mh.optim.Adam(lr=0.01, clip_norm=1.0)
    options: dict[str, Any] = {"optimizer": rule, "strategy": mh.Hogwild(workers=1)}
    result = trainer(tmp_path, wide_net(), **options).fit(topics(200), epochs=1)
    assert any("autograd (gradients are clipped" in note for note in notes(result.run_dir))


@pytest.mark.parametrize(
    ("share", "weights"),
    [
        ("batch", "the weights are as they were before this batch"),
        ("sample", "samples of this batch that came before have moved the weights"),
    ],
)
def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path, share: str, weights: str) -> None:
    source = topics(200)
    source.features.values[6 * 30] = float("nan")
    training = trainer(tmp_path, wide_net(share=share))
    with pytest.raises(mh.errors.TrainingDiverged, match=f"loss is nan at step.*{weights}"):
        training.fit(source, epochs=1)


def test_synchronous_training_repeats_whenever_refreshes_fall_due(tmp_path: Path) -> None:
    ends = []
    for number in range(2):
        model = wide_net()
        model[2] = mh.sparse.LSHLinear(32, LABELS, refresh=mh.sparse.Refresh(first=1, growth=0.0))
        model[2].load_state_dict(wide_net()[2].state_dict())
        trainer(tmp_path / str(number), model, strategy=mh.Synchronous()).fit(topics(), epochs=3)
        ends.append(model.state_dict())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
