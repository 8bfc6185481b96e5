"""Models move into shared memory and back without changing."""

import pytest
import torch
from torch import nn

from manyhands import optim
from manyhands.errors import ModelError
from manyhands.replica.shared_weights import refuse_what_cannot_be_shared, share, unshare


def conv_net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))


@pytest.mark.parametrize("channels_last", [False, True])
def test_sharing_and_unsharing_keep_every_value(channels_last):
    model = conv_net()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    arena, weights = share(model, optim.Adam(lr=0.1), averaging=True, channels_last=channels_last)
    assert all(arena.offset_of(p) is not None for p in model.parameters())
    assert all(arena.offset_of(b) is not None for b in model.buffers())
    assert torch.equal(weights.averaged["0.weight"], before["0.weight"])
    assert [len(states) for states in weights.states_of(0).values()] == [2] * 6
    unshare(model)
    assert all(arena.offset_of(p) is None for p in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert tensor.is_contiguous()


def test_a_row_lies_beside_its_states_where_rows_are_visited():
    model, rule = conv_net(), optim.Adagrad(lr=0.1, initial_accumulator=0.5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    _, weights = share(model, rule, averaging=False, by_rows=["3.weight"])
    weight, (sums,) = model[3].weight, weights.states_of(0)["3.weight"]
    assert sums.data_ptr() - weight.data_ptr() == 12 * 4
    assert weight.stride() == sums.stride() == (24, 1)
    assert torch.equal(sums, torch.full((2, 12), 0.5))
    assert weights.parameters["3.weight"].data_ptr() == weight.data_ptr()
    assert weights.named_states(rule).keys() == {f"{n}.sum" for n, _ in model.named_parameters()}
    unshare(model)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert tensor.is_contiguous()


def test_frozen_parameters_have_no_state():
    model = conv_net()
    model[0].weight.requires_grad_(False)
    _, weights = share(model, optim.SGD(lr=0.1, momentum=0.9), averaging=True)
    assert "0.weight" not in weights.states_of(0)
    assert "0.weight" not in weights.parameters
    assert "0.weight" not in weights.averaged


def test_adagrad_state_starts_where_the_rule_says():
    _, weights = share(conv_net(), optim.Adagrad(lr=0.1, initial_accumulator=0.5), averaging=False)
    assert float(weights.states_of(0)["3.bias"][0][0]) == 0.5
    assert weights.averaged == {}
    assert "3.bias.sum" in weights.named_states(optim.Adagrad(lr=0.1))


def test_momentum_is_kept_per_worker_and_handed_over_as_its_mean():
    rule = optim.SGD(lr=0.1, momentum=0.9)
    _, weights = share(conv_net(), rule, workers=2, averaging=False)
    weights.states_of(0)["3.bias"][0].fill_(1.0)
    weights.states_of(1)["3.bias"][0].fill_(4.0)
    named = weights.named_states(rule)
    assert named["3.bias.momentum"].tolist() == [2.5, 2.5]
    weights.load_states(rule, named)
    assert weights.states_of(1)["3.bias"][0].tolist() == [2.5, 2.5]


def test_other_states_are_shared():
    _, weights = share(conv_net(), optim.Adam(lr=0.1), workers=3, averaging=False)
    assert weights.states_of(0) is weights.states_of(2)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.LazyLinear(3), "lazy"),
        (nn.Linear(2, 2).double(), "float64"),
        (nn.Linear(2, 2).requires_grad_(False), "no trainable parameter"),
        (nn.Flatten(), "no trainable parameter"),
    ],
)
def test_what_cannot_be_shared_is_refused(model, words):
    with pytest.raises(ModelError, match=words):
        refuse_what_cannot_be_shared(model)


def test_gradient_hooks_are_refused():
    model = nn.Linear(2, 2)
    model.weight.register_hook(lambda gradient: gradient * 0)
    with pytest.raises(ModelError, match="gradient hook"):
        refuse_what_cannot_be_shared(model)


def test_two_parameters_over_one_memory_are_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight.data = model[0].weight.data
    with pytest.raises(ModelError, match="two objects"):
        refuse_what_cannot_be_shared(model)
