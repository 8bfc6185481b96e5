"""Rules as plain data: what the kernels are told is what the rule says."""

import json
from dataclasses import asdict

import pytest

from manyhands import optim
from manyhands.errors import ModelError
from manyhands.optim.native import RuleSpec, native_rule, rule_spec

RULES = [
    optim.SGD(lr=0.1),
    optim.SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    optim.Adagrad(lr=0.1, initial_accumulator=0.5),
    optim.Adam(lr=0.1),
    optim.AdamW(lr=0.1),
    optim.Outer(delay=4),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_kernel_keeps_the_states_that_the_rule_names(rule):
    assert native_rule(rule).states == len(rule.states) == len(rule_spec(rule).state_starts)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_spec_survives_as_json(rule):
    spec = rule_spec(rule)
    read = json.loads(json.dumps(asdict(spec)))
    read["state_starts"] = tuple(read["state_starts"])
    assert RuleSpec(**read) == spec


def test_settings_and_starts_are_the_rules_own():
    assert rule_spec(optim.Adam(lr=1.0, betas=(0.5, 0.75), eps=0.25)).settings == {
        "weight_decay": 0.0,
        "beta1": 0.5,
        "beta2": 0.75,
        "eps": 0.25,
    }
    assert rule_spec(optim.Adagrad(lr=0.1, initial_accumulator=0.5)).state_starts == (0.5,)
    assert rule_spec(optim.Outer(delay=4)).settings == {"momentum": 0.9, "delay": 4}


def test_a_rule_without_a_kernel_is_refused():
    with pytest.raises(ModelError, match="No kernel for the update rule Rule"):
        rule_spec(optim.Rule(lr=0.1))
