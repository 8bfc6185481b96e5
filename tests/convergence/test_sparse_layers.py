"""Nets with sparse layers train under every strategy, and go on from a checkpoint."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.errors import ConfigError, ModelError

NEURONS = 1500


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """These nets are tiny: a second thread of PyTorch's costs more than it brings."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Branching(nn.Module):
    """A wide hidden layer beside a plain one, and a wide output: nothing any fast path knows."""

    def __init__(self) -> None:
        super().__init__()
        sampling = mh.sparse.Sampling(limit=200, floor=250)
        self.enter = nn.Linear(20, 24)
        self.wide = mh.sparse.LSHLinear(24, 1000, sampling=sampling)
        self.narrow = nn.Linear(24, 24)
        self.back = nn.Linear(1000, 24)
        self.leave = mh.sparse.LSHLinear(24, NEURONS, sampling=sampling)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.enter(x))
        wide = self.back(torch.relu(self.wide(x)))
        return self.leave(torch.relu(self.narrow(x) + wide))


def wide_labels(samples: int = 512, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Points around 40 centres, each with a label somewhere among all of them."""
    torch.manual_seed(3)
    centres, names = 3 * torch.randn(40, 20), torch.randperm(NEURONS)[:40]
    generator = torch.Generator().manual_seed(seed)
    which = torch.randint(40, (samples,), generator=generator)
    noise = 0.3 * torch.randn(samples, 20, generator=generator)
    return centres[which] + noise, names[which]


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return float((outputs.argmax(1) == targets).float().mean())


def trainer(tmp_path, **settings) -> mh.Trainer:
    usual = {
        "loss": mh.sparse.LSHSoftmaxLoss(),
        "optimizer": mh.optim.Adam(lr=0.01),
        "metrics": [accuracy],
        "batch_size": 32,
        "progress": False,
        "run_dir": tmp_path / "run",
    }
    return mh.Trainer(**(usual | settings))


@pytest.mark.parametrize(
    "strategy",
    [
        mh.Synchronous(),
        mh.Hogwild(workers=2),
        mh.Downpour(replicas=1, servers=1, push="gradients"),
        mh.Downpour(replicas=1, servers=1, workers=2, push="weights"),
    ],
    ids=["synchronous", "hogwild", "downpour-gradients", "downpour-weights"],
)
def test_every_strategy_trains_two_sparse_layers(tmp_path, strategy):
    torch.manual_seed(0)
    run = trainer(tmp_path, model=Branching(), strategy=strategy)
    result = run.fit(wide_labels(), validation=wide_labels(200, seed=1), epochs=8)
    # Gradients that are late on a crowded machine learn less; chance is one in forty.
    assert result.metrics["accuracy"] > 0.7
    assert all(type(p) is nn.Parameter for p in result.model.parameters())


@pytest.mark.parametrize(
    "rule",
    [
        mh.optim.AdamW(lr=0.01, weight_decay=0.1),
        mh.optim.Adam(lr=0.01, clip_norm=1.0),
        mh.optim.Adagrad(lr=0.1),
        mh.optim.SGD(lr=0.5),
    ],
    ids=["adamw", "clipping", "adagrad", "sgd"],
)
def test_synchronous_training_takes_every_rule_that_rows_can_follow(tmp_path, rule):
    torch.manual_seed(0)
    run = trainer(tmp_path, model=Branching(), optimizer=rule)
    result = run.fit(wide_labels(), epochs=4)
    losses = [record["train_loss"] for record in result.history]
    assert losses[-1] < 0.7 * losses[0]


def test_a_resumed_run_is_the_run_that_was_not_interrupted(tmp_path):
    ends = []
    for name, parts in (("whole", [4]), ("halves", [2, 4])):
        torch.manual_seed(0)
        resume = None
        for epochs in parts:
            model = few_rows()
            run = trainer(tmp_path, model=model, run_dir=tmp_path / name, seed=1)
            result = run.fit(wide_labels(), epochs=epochs, resume=resume)
            resume = result.run_dir
        ends.append(result.history[-1]["train_loss"])
    # Another process would build other tables: near, not equal.
    assert ends[1] == pytest.approx(ends[0], rel=0.2)


def few_rows() -> nn.Sequential:
    torch.manual_seed(0)
    sampling = mh.sparse.Sampling(limit=300, floor=400)
    return nn.Sequential(
        nn.Linear(20, 24), nn.ReLU(), mh.sparse.LSHLinear(24, NEURONS, sampling=sampling)
    )


def test_what_cannot_be_trained_is_said_before_anything_starts(tmp_path):
    data = wide_labels(64)
    with pytest.raises(ModelError, match=r"sparse gradients and SGD .*momentum"):
        trainer(tmp_path, model=few_rows(), optimizer=mh.optim.SGD(lr=0.1, momentum=0.9)).fit(
            data, epochs=1
        )
    with pytest.raises(ModelError, match=r"sparse gradients and AdamW .*weight decay"):
        trainer(
            tmp_path,
            model=Branching(),
            strategy=mh.Hogwild(workers=1),
            optimizer=mh.optim.AdamW(lr=0.1),
        ).fit(data, epochs=1)
    with pytest.raises(ModelError, match=r"Synchronous can't add up.*workers=1 or Hogwild"):
        trainer(tmp_path, model=few_rows(), strategy=mh.Synchronous(workers=2)).fit(data, epochs=1)
    with pytest.raises(ModelError, match="LSHSoftmaxLoss"):
        trainer(tmp_path, model=few_rows(), loss=nn.CrossEntropyLoss()).fit(data, epochs=1)
    with pytest.raises((ConfigError, mh.errors.DataError), match="1500 outputs"):
        trainer(tmp_path, model=few_rows()).fit((data[0], data[1] + NEURONS), epochs=1)
    with pytest.raises(ModelError, match=r"weight decay .*fast path.*clipped by their norm"):
        trainer(
            tmp_path,
            model=few_rows(),
            strategy=mh.Hogwild(workers=1),
            optimizer=mh.optim.AdamW(lr=0.1, clip_norm=1.0),
        ).fit(data, epochs=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("ema", [None, mh.EMA(0.001)], ids=["weights", "average"])
@pytest.mark.parametrize(
    "strategy",
    [
        mh.Synchronous(workers=1),
        mh.Hogwild(workers=2),
        mh.Hogwild(workers=2, wide_weights="bfloat16"),
    ],
    ids=["synchronous", "hogwild", "bfloat16"],
)
def test_rows_that_nobody_touched_have_decayed_when_an_epoch_is_over(tmp_path, strategy, ema):
    model = few_rows()
    before = model[2].weight.detach().norm(dim=1)
    rule = mh.optim.SGD(lr=0.001, weight_decay=10.0)
    run = trainer(tmp_path, model=model, optimizer=rule, strategy=strategy, ema=ema)
    run.fit(wide_labels(320), epochs=2)
    shares = model[2].weight.detach().norm(dim=1) / before
    torch.testing.assert_close(shares, torch.full_like(shares, 0.99**20), rtol=0.02, atol=0)
