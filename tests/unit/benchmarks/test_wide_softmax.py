"""The softmax peers of a wide layer: they train as autograd and `torch.optim` would."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from benchmarks.contestants.wide_softmax import AdamRows, FullSoftmax, SampledSoftmax, WideSoftmax
from manyhands.sparse import CSR

FEATURES, HIDDEN, LABELS, RATE = 30, 8, 50, 0.01
STEPS = 4


def first_parameters() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(FEATURES, HIDDEN), (HIDDEN,), (LABELS, HIDDEN), (LABELS,)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def batches() -> list[tuple[CSR, CSR]]:
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(STEPS):
        x = torch.rand(6, FEATURES, generator=generator)
        y = (torch.rand(6, LABELS, generator=generator) < 0.1).float()
        y[2] = 0.0  # a sample without labels
        found.append((CSR.from_dense(x), CSR.from_dense(y)))
    return found


def loss_of(parameters: list[torch.Tensor], x: CSR, y: CSR) -> torch.Tensor:
    features, hidden_bias, weight, bias = parameters
    logits = (x.to_dense() @ features + hidden_bias).relu() @ weight.t() + bias
    shares = y.to_dense() / y.to_dense().sum(1, keepdim=True).clamp(min=1)
    return -(shares * logits.log_softmax(1)).sum() / len(x)


def trained_by_autograd() -> list[torch.Tensor]:
    """Every feature is in every batch, or Adam on rows and Adam would differ."""
    parameters = [nn.Parameter(tensor) for tensor in first_parameters()]
    adam = torch.optim.Adam(parameters, lr=RATE)
    for x, y in batches():
        adam.zero_grad()
        loss_of(list(parameters), x, y).backward()
        adam.step()
    return [parameter.detach() for parameter in parameters]


def train(peer: WideSoftmax) -> list[torch.Tensor]:
    for x, y in batches():
        peer.step(x, y)
    return peer.parameters


def test_the_batches_have_every_feature() -> None:
    assert all(len(x.columns.unique()) == FEATURES for x, _ in batches())


def test_the_full_softmax_trains_as_autograd_would() -> None:
    for ours, theirs in zip(
        train(FullSoftmax(first_parameters(), RATE)), trained_by_autograd(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_a_sampled_softmax_of_all_labels_is_the_full_one() -> None:
    sampled = SampledSoftmax(first_parameters(), RATE, negatives=100 * LABELS)

    for ours, theirs in zip(
        train(sampled), train(FullSoftmax(first_parameters(), RATE)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_a_sampled_softmax_moves_only_labels_of_the_batch_and_drawn_ones() -> None:
    peer = SampledSoftmax(first_parameters(), RATE, negatives=3)
    before = peer.parameters[2].clone()
    x, y = batches()[0]

    peer.step(x, y)

    moved = (peer.parameters[2] != before).any(1).nonzero().flatten().tolist()
    own = set(y.columns.tolist())
    assert own <= set(moved)
    assert 0 < len(set(moved) - own) <= 3


def test_a_correction_counts_a_drawn_label_for_all_it_stands_for() -> None:
    peer = SampledSoftmax(first_parameters(), RATE, negatives=5, corrected=True)

    offsets = peer._stand_for(4, torch.tensor([2]))

    assert offsets.tolist() == pytest.approx([math.log(10), math.log(10), 0.0, math.log(10)])


def test_rows_follow_sparse_adam() -> None:
    weight = nn.Parameter(torch.randn(7, 3, generator=torch.Generator().manual_seed(2)))
    ours = AdamRows(weight.detach().clone())
    adam = torch.optim.SparseAdam([weight], lr=RATE)
    for step in range(1, 5):
        rows = torch.tensor([step, step + 1])
        grad = torch.full((2, 3), float(step))
        weight.grad = torch.sparse_coo_tensor(rows[None], grad, weight.shape, check_invariants=True)
        adam.step()
        ours.update(rows, grad, RATE, step)

    torch.testing.assert_close(ours.weight, weight.detach())
