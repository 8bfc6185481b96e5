"""Rules as the kernels take them, and as plain data that a parameter server is told.

A server's rules come from the driver with its task: a name, settings and the numbers that fresh
states begin with, nothing that must be unpickled into a class of ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from manyhands import kernels
from manyhands.errors import ModelError
from manyhands.optim.rules import SGD, Accumulate, Adagrad, Adam, Outer, Rule


@dataclass(frozen=True, slots=True)
class RuleSpec:
    """A rule by its name and the settings of its kernel; its rate comes with every update."""

    name: str
    settings: dict[str, float] = field(default_factory=dict)
    state_starts: tuple[float, ...] = ()

    def native(self) -> kernels.Rule:
        """The rule as the kernels take it."""
        return kernels.Rule(self.name, **self.settings)  # type: ignore[arg-type]


def rule_spec(rule: Rule) -> RuleSpec:
    """The rule as plain data."""
    starts = tuple(rule.state_start(state) for state in rule.states)
    return RuleSpec(rule.name, _settings(rule), starts)


def native_rule(rule: Rule) -> kernels.Rule:
    """The rule as the kernels take it."""
    return rule_spec(rule).native()


def _settings(rule: Rule) -> dict[str, float]:
    if isinstance(rule, Outer):
        return {"momentum": rule.momentum, "delay": rule.delay}
    if isinstance(rule, Accumulate):
        return {}
    if isinstance(rule, SGD):
        return {
            "momentum": rule.momentum,
            "nesterov": rule.nesterov,
            "weight_decay": rule.weight_decay,
        }
    if isinstance(rule, Adagrad):
        return {"weight_decay": rule.weight_decay, "eps": rule.eps}
    if isinstance(rule, Adam):
        beta1, beta2 = rule.betas
        return {
            "weight_decay": rule.weight_decay,
            "beta1": beta1,
            "beta2": beta2,
            "eps": rule.eps,
        }
    raise ModelError(f"No kernel for the update rule {type(rule).__name__}.")
