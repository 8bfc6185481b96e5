"""The autograd step does what a torch optimizer does; sparse gradients touch their rows alone."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from manyhands import optim
from manyhands.errors import ModelError
from manyhands.replica.layout import channels_last, likes_channels_last
from manyhands.replica.shared_weights import share
from manyhands.replica.steps import AutogradStep, LossStep, cut, flat


def conv_net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, bias=False), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(80, 3)
    )


@pytest.mark.parametrize("last", [False, True], ids=["channels-first", "channels-last"])
@pytest.mark.parametrize(
    "rule",
    [
        optim.SGD(lr=0.1, momentum=0.9, weight_decay=0.01, clip_norm=0.3),
        optim.Adagrad(lr=0.05),
        optim.AdamW(lr=0.01),
    ],
    ids=lambda rule: rule.name,
)
def test_autograd_step_equals_the_torch_optimizer(rule, last):
    ours, theirs = conv_net(), conv_net()
    inputs, targets = torch.randn(24, 2, 6, 6), torch.randint(3, (24,))
    _, weights = share(ours, rule, averaging=False, channels_last=last)
    loss = nn.CrossEntropyLoss()
    arrange = channels_last if last else lambda batch: batch
    step = AutogradStep(ours, LossStep(loss), rule, weights.states_of(0), arrange=arrange)
    losses = step.train((inputs, targets), 8, np.full(3, rule.lr), 1)
    optimizer = rule.torch_optimizer(theirs.parameters())
    for number in range(3):
        optimizer.zero_grad()
        part = slice(8 * number, 8 * number + 8)
        value = loss(theirs(inputs[part]), targets[part])
        value.backward()
        if rule.clip_norm:
            nn.utils.clip_grad_norm_(theirs.parameters(), rule.clip_norm)
        optimizer.step()
        assert losses[number] == pytest.approx(float(value.detach()), rel=1e-4)
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)


def test_a_loss_that_is_not_finite_changes_nothing():
    model = nn.Linear(2, 2)
    rule = optim.SGD(lr=0.1)
    _, weights = share(model, rule, averaging=False)
    before = model.weight.detach().clone()
    step = AutogradStep(
        model,
        lambda m, b: m(b[0]).sum() * float("inf"),
        rule,
        weights.states_of(0),
    )
    losses = step.train((torch.ones(4, 2),), 2, np.full(2, 0.1), 1)
    assert len(losses) == 1
    assert not np.isfinite(losses[0])
    assert torch.equal(model.weight, before)


def embedding_step(rule: optim.Rule) -> tuple[nn.Embedding, AutogradStep]:
    torch.manual_seed(0)
    model = nn.Embedding(10, 4, sparse=True)
    _, weights = share(model, rule, averaging=False)
    step = AutogradStep(
        model,
        lambda m, b: m(b[0]).square().sum(),
        rule,
        weights.states_of(0),
    )
    return model, step


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # raised inside torch.optim.Adagrad
@pytest.mark.parametrize("rule", [optim.SGD(lr=0.1), optim.Adagrad(lr=0.1, clip_norm=1.0)])
def test_sparse_rows_move_as_with_torch_and_the_others_stay(rule):
    model, step = embedding_step(rule)
    theirs = nn.Embedding(10, 4, sparse=True)
    theirs.weight.data.copy_(model.weight.data)
    optimizer = rule.torch_optimizer(theirs.parameters())
    words = torch.tensor([1, 3, 3, 7])
    for number in range(3):
        step.train((words,), 4, np.full(1, rule.lr), number + 1)
        optimizer.zero_grad()
        theirs(words).square().sum().backward()
        if rule.clip_norm:
            gradient = theirs.weight.grad.coalesce()
            norm = float(gradient.values().norm())
            theirs.weight.grad = gradient * min(1.0, rule.clip_norm / (norm + 1e-6))
        optimizer.step()
    torch.testing.assert_close(model.weight, theirs.weight, rtol=1e-4, atol=1e-6)


class LinesOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Parameter(torch.arange(6.0))
        self.other = nn.Parameter(torch.arange(6.0) - 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        lines = [torch.gather(p, 0, rows, sparse_grad=True) for p in (self.line, self.other)]
        return (lines[0] * lines[1]).sum()


def test_rows_of_one_number_move_as_with_torch():
    rule, ours, theirs = optim.Adagrad(lr=0.1), LinesOnly(), LinesOnly()
    _, weights = share(ours, rule, averaging=False)
    step = AutogradStep(ours, lambda m, b: m(b[0]), rule, weights.states_of(0))
    rows = torch.tensor([5, 2, 2])
    optimizer = rule.torch_optimizer(theirs.parameters())
    for number in range(2):
        step.train((rows,), 3, np.full(1, rule.lr), number + 1)
        optimizer.zero_grad()
        theirs(rows).backward()
        for parameter in theirs.parameters():
            parameter.grad = parameter.grad.to_dense()
        optimizer.step()
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_a_rule_that_cannot_follow_sparse_gradients_says_so():
    _, step = embedding_step(optim.SGD(lr=0.1, momentum=0.9))
    with pytest.raises(ModelError, match=r"sparse gradients .* momentum"):
        step.train((torch.tensor([1]),), 1, np.full(1, 0.1), 1)


def test_cut_and_flat():
    pieces = cut((torch.arange(10), torch.arange(10) * 2), 4, 3)
    assert [len(piece[0]) for piece in pieces] == [4, 4, 2]
    tensor = torch.randn(2, 3, 4, 4)
    assert torch.equal(flat(tensor), tensor.reshape(-1))
    last = tensor.contiguous(memory_format=torch.channels_last)
    assert flat(last).data_ptr() == last.data_ptr()
    assert flat(tensor.transpose(0, 1)).is_contiguous()


class Viewing(nn.Module):
    """Flattens with `view`, which channels-last images don't allow."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = conv_net()[:3]
        self.out = nn.Linear(80, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(x).view(len(x), -1))


def test_channels_last_is_for_models_that_can_take_it():
    batch = torch.randn(4, 2, 6, 6), torch.randint(3, (4,))
    step = LossStep(nn.CrossEntropyLoss())
    assert likes_channels_last(conv_net(), step, batch)
    assert not likes_channels_last(Viewing(), step, batch)
    assert not likes_channels_last(nn.Linear(6, 3), step, batch)


class Pair(NamedTuple):
    image: torch.Tensor
    label: torch.Tensor


def test_a_named_tuple_stays_one():
    arranged = channels_last(Pair(torch.randn(2, 3, 4, 4), torch.zeros(2)))
    assert arranged.image.is_contiguous(memory_format=torch.channels_last)
