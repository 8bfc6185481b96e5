"""A batch shared out among lock-free workers means the same training."""

import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.data import as_source
from manyhands.replica.steps import LossStep
from manyhands.strategies.strategy import TrainingJob
from tests.conftest import blobs


def job(rule: mh.optim.Rule, *, batch_size: int = 32, model: nn.Module | None = None, **more):
    return TrainingJob(
        model=model or nn.Linear(20, 4),
        step=LossStep(nn.CrossEntropyLoss()),
        rule=rule,
        schedule=mh.optim.Constant(),
        source=as_source(blobs(161)),
        sample=None,
        batch_size=batch_size,
        epochs=2,
        seed=0,
        shuffle=True,
        ema=more.get("ema"),
        emit=lambda event: None,
    )


def test_size_rate_and_forgetting_follow_the_share():
    shared = job(mh.optim.SGD(lr=0.4, momentum=0.9), ema=mh.EMA(0.9)).shared_out(4)
    assert shared.batch_size == 8
    assert shared.rule.lr == pytest.approx(0.1)
    assert shared.ema is not None
    assert shared.ema.decay**4 == pytest.approx(0.9)


def test_a_share_has_at_least_one_sample():
    shared = job(mh.optim.Adam(lr=0.4), batch_size=4).shared_out(16)
    assert shared.batch_size == 1
    assert shared.rule.lr == pytest.approx(0.1)


def test_one_worker_changes_nothing():
    whole = job(mh.optim.SGD(lr=0.4))
    assert whole.shared_out(1) == whole


def test_adagrad_keeps_its_rate():
    assert job(mh.optim.Adagrad(lr=0.4)).shared_out(4).rule.lr == 0.4


def test_batch_norm_keeps_enough_samples_and_drops_a_last_single_one():
    model = nn.Sequential(nn.Linear(20, 4), nn.BatchNorm1d(4))
    assert job(mh.optim.SGD(lr=0.4), model=model).shared_out(8).batch_size == 16
    assert job(mh.optim.SGD(lr=0.4), model=model, batch_size=4).shared_out(8).batch_size == 4
    assert job(mh.optim.SGD(lr=0.4), model=model).samples_per_epoch == 160
    assert job(mh.optim.SGD(lr=0.4)).samples_per_epoch == 161


def test_batches_rates_and_seeds_are_pure():
    whole = job(mh.optim.SGD(lr=0.4))
    assert whole.batches_per_epoch == 6
    assert whole.total_steps == 12
    assert torch.tensor(whole.rates(0, 3)).tolist() == pytest.approx([0.4] * 3)
    assert whole.piece_seed(1, 2) == whole.piece_seed(1, 2) != whole.piece_seed(2, 1)
