"""Lock-free training learns as well as the synchronous loop, whatever the net is made of."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import manyhands as mh
from tests.conftest import blobs, small_net


class Residual(nn.Module):
    """Branches, BatchNorm and tied weights: nothing the native plan knows."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(20, 32)
        self.norm = nn.BatchNorm1d(32)
        self.first = nn.Linear(32, 32)
        self.second = nn.Linear(32, 32)
        self.second.weight = self.first.weight
        self.leave = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.enter(x)))
        x = x + F.relu(self.first(x))
        x = x + F.relu(self.second(x))
        return self.leave(x)


class Images(nn.Module):
    """The MNIST example of the PyTorch documentation, smaller: functions, views, log_softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.out = nn.Linear(6 * 3 * 3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        x = x.view(-1, 54)
        return F.log_softmax(self.out(x), dim=1)


class NormalisedImages(nn.Module):
    """BatchNorm between layers whose weights the backward pass needs; a view of its output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.second = nn.Conv2d(6, 6, 3)
        self.out = nn.Linear(6 * 6 * 6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.second(F.relu(self.norm(self.first(x)))))
        return F.log_softmax(self.out(x.view(x.size(0), -1)), dim=1)


def images(samples: int = 512) -> tuple[torch.Tensor, torch.Tensor]:
    points, labels = blobs(samples, features=64)
    return points.view(-1, 1, 8, 8), labels


RULES = [
    mh.optim.SGD(lr=0.05, momentum=0.9),
    mh.optim.SGD(lr=0.05, momentum=0.9, nesterov=True, clip_norm=1.0),
    mh.optim.Adagrad(lr=0.05),
    mh.optim.Adam(lr=0.01),
    mh.optim.AdamW(lr=0.01, clip_norm=5.0),
]


# Without a plan the same kernels move the weights: two rules show that they are called.
@pytest.mark.parametrize(
    ("net", "rule"),
    [(small_net, rule) for rule in RULES] + [(Residual, RULES[1]), (Residual, RULES[4])],
    ids=lambda value: getattr(value, "name", None) or value.__name__,
)
def test_every_rule_learns_with_and_without_a_plan(make_trainer, rule, net):
    torch.manual_seed(0)
    trainer = make_trainer(net(), optimizer=rule, strategy=mh.Hogwild(workers=2))
    result = trainer.fit(blobs(1024), validation=blobs(256, seed=1), epochs=4)
    assert result.accuracy > 0.95
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]


def test_tied_weights_stay_tied_and_batch_norm_statistics_move(make_trainer):
    torch.manual_seed(0)
    model = Residual()
    make_trainer(model, strategy=mh.Hogwild(workers=2)).fit(blobs(512), epochs=2)
    assert model.second.weight is model.first.weight
    assert float(model.norm.running_mean.abs().sum()) > 0
    assert int(model.norm.num_batches_tracked) > 16


@pytest.mark.parametrize("net", [small_net, Residual])
def test_frozen_parameters_do_not_move(make_trainer, net):
    torch.manual_seed(0)
    model = net()
    frozen = next(iter(model.parameters())).requires_grad_(False)
    before = frozen.detach().clone()
    trainer = make_trainer(model, strategy=mh.Hogwild(workers=2))
    result = trainer.fit(blobs(512), validation=blobs(128, seed=1), epochs=3)
    assert torch.equal(frozen, before)
    assert result.accuracy > 0.9


@pytest.mark.parametrize(("net", "workers"), [(Images, 1), (Images, 3), (NormalisedImages, 2)])
def test_a_net_written_with_functions_learns_with_an_average(make_trainer, net, workers):
    torch.manual_seed(0)
    trainer = make_trainer(
        net(), loss=F.nll_loss, strategy=mh.Hogwild(workers=workers), ema=mh.EMA(0.95, every=3)
    )
    result = trainer.fit(images(1024), validation=images(256), epochs=4)
    assert result.accuracy > 0.9


def test_sparse_embeddings_learn_and_only_touched_rows_move(make_trainer):
    torch.manual_seed(0)

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(100, 8, sparse=True)
            self.out = nn.Linear(8, 2)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            return self.out(self.bag(words))

    words = torch.randint(0, 50, (512, 6))
    labels = (words < 25).float().mean(1).gt(0.5).long()
    model = Bag()
    before = model.bag.weight.detach().clone()
    trainer = make_trainer(
        model, optimizer=mh.optim.Adagrad(lr=0.1), strategy=mh.Hogwild(workers=2)
    )
    data = torch.utils.data.TensorDataset(words, labels)
    result = trainer.fit(data, validation=data, epochs=6)
    assert result.accuracy > 0.9
    assert torch.equal(model.bag.weight[50:], before[50:])
    assert not torch.equal(model.bag.weight[:50], before[:50])
