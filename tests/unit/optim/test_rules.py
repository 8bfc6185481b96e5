"""Rules refuse nonsense in a sentence and name their torch twins rightly."""

import pytest
import torch

from manyhands import optim
from manyhands.errors import ConfigError


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: optim.SGD(lr=-1.0), "lr is -1.0"),
        (lambda: optim.SGD(lr=float("nan")), "lr is nan"),
        (lambda: optim.SGD(lr=0.1, momentum=1.0), "momentum is 1.0"),
        (lambda: optim.SGD(lr=0.1, nesterov=True), "momentum above 0"),
        (lambda: optim.SGD(lr=0.1, weight_decay=-0.1), "weight_decay is -0.1"),
        (lambda: optim.SGD(lr=0.1, clip_norm=0.0), "clip_norm is 0.0"),
        (lambda: optim.Adam(lr=0.1, betas=(0.9, 1.0)), "betas is (0.9, 1.0)"),
        (lambda: optim.Adam(lr=0.1, eps=0.0), "eps is 0.0"),
        (lambda: optim.Adagrad(lr=0.1, initial_accumulator=-1.0), "initial_accumulator is -1.0"),
        (lambda: optim.Outer(momentum=1.0), "momentum is 1.0"),
        (lambda: optim.Outer(delay=0), "delay is 0"),
        (lambda: optim.Outer(delay=True), "delay is True"),
        (lambda: optim.Outer(weight_decay=0.1), "weight_decay is 0.1"),
        (lambda: optim.Outer(clip_norm=1.0), "clip_norm is 1.0"),
        (lambda: optim.Outer().torch_optimizer([]), "such as SGD"),
    ],
)
def test_nonsense_is_refused_with_the_value_seen(make, words):
    with pytest.raises(ConfigError) as caught:
        make()
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "twin"),
    [
        (optim.SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01), torch.optim.SGD),
        (optim.Adagrad(lr=0.1, initial_accumulator=0.2), torch.optim.Adagrad),
        (optim.Adam(lr=0.1), torch.optim.Adam),
        (optim.AdamW(lr=0.1), torch.optim.AdamW),
    ],
)
def test_torch_twin_keeps_the_state_tensors_that_the_rule_names(rule, twin):
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = rule.torch_optimizer([parameter])
    assert type(optimizer) is twin
    parameter.grad = torch.ones(3)
    optimizer.step()
    state = optimizer.state[parameter]
    assert set(rule.torch_states) <= set(state)
    assert ("step" in state) == rule.torch_counts_steps
    assert optimizer.param_groups[0]["weight_decay"] == rule.weight_decay


def test_plain_sgd_keeps_no_state():
    assert optim.SGD(lr=0.1).states == ()
    assert optim.SGD(lr=0.1, momentum=0.5).states == ("momentum",)


def test_rules_that_move_every_row_refuse_sparse_gradients():
    assert optim.SGD(lr=0.1).sparse_refusal() is None
    assert optim.Adagrad(lr=0.1).sparse_refusal() is None
    assert "momentum" in (optim.SGD(lr=0.1, momentum=0.9).sparse_refusal() or "")
    assert "decay" in (optim.AdamW(lr=0.1).sparse_refusal() or "")


def test_description_leaves_out_what_is_not_set():
    described = optim.SGD(lr=0.1, momentum=0.9).to_dict()
    assert described["rule"] == "sgd"
    assert described["momentum"] == 0.9
    assert "clip_norm" not in described
