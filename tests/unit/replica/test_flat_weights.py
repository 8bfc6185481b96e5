"""Parameters as views into one line of floats."""

from __future__ import annotations

import torch
from torch import nn

from manyhands.replica.flat_weights import FlatLayout, copies_for_threads


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))


def layout_of(model: nn.Module, *, channels_last: bool = False) -> FlatLayout:
    starts, at = [], 0
    for parameter in model.parameters():
        starts.append(at)
        at += -(-parameter.numel() // 16) * 16
    return FlatLayout(model, starts, at, channels_last=channels_last)


def test_the_model_computes_the_same_from_the_line() -> None:
    for channels_last in (False, True):
        model = net().eval()
        x = torch.randn(5, 3, 3, 3)
        wanted = model(x)
        layout = layout_of(model, channels_last=channels_last)
        line = torch.zeros(layout.floats)
        layout.write({n: p.detach() for n, p in model.named_parameters()}, line)
        layout.attach(model, line)
        torch.testing.assert_close(model(x), wanted)
        line.zero_()
        assert all(not p.detach().any() for p in model.parameters())


def test_channels_last_kernels_lie_that_way_round() -> None:
    model = net()
    layout = layout_of(model, channels_last=True)
    view = layout.view(torch.zeros(layout.floats), "0.weight")
    assert view.shape == (4, 3, 2, 2)
    assert view.is_contiguous(memory_format=torch.channels_last)


def test_copies_share_weights_and_buffers_but_not_gradients() -> None:
    model = net()
    first, second = copies_for_threads(model, 2)
    assert first is model
    with torch.no_grad():
        model[3].weight.fill_(2.0)
        model[1].running_mean.fill_(3.0)
    assert bool((second[3].weight == 2.0).all())
    assert bool((second[1].running_mean == 3.0).all())
    second(torch.randn(5, 3, 3, 3)).sum().backward()
    assert second[3].weight.grad is not None
    assert first[3].weight.grad is None


def test_tied_weights_stay_tied_in_copies() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    _, twin = copies_for_threads(model, 2)
    assert twin[1].weight is twin[0].weight
