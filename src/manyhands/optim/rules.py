"""Update rules: what a gradient does to a weight, as plain data.

A rule carries hyper-parameters and no tensors; the fused kernels that execute it are in the native
module (`native/kernels/rules.h`). Every rule knows the `torch.optim` class that means the same
thing, which the synchronous strategy uses and the tests compare against.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from manyhands.errors import ConfigError

if TYPE_CHECKING:  # a parameter server knows rules and has no use for torch, seconds to import
    import torch


def _require(condition: bool, rule: object, name: str, value: object, expected: str) -> None:
    if not condition:
        raise ConfigError(f"{type(rule).__name__}: {name} is {value!r}; expected {expected}.")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_rate(value: float) -> bool:
    return _is_number(value) and value >= 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What all rules share: a learning rate, weight decay and clipping by the global norm."""

    lr: float
    weight_decay: float = 0.0
    clip_norm: float | None = None

    name: ClassVar[str] = ""
    state_names: ClassVar[tuple[str, ...]] = ()
    torch_states: ClassVar[tuple[str, ...]] = ()  # what torch.optim calls the same tensors
    torch_counts_steps: ClassVar[bool] = True
    state_per_worker: ClassVar[bool] = False  # whether lock-free workers each keep their own

    def __post_init__(self) -> None:
        _require(_is_rate(self.lr), self, "lr", self.lr, "a finite number >= 0")
        _require(
            _is_rate(self.weight_decay), self, "weight_decay", self.weight_decay, "a number >= 0"
        )
        if self.clip_norm is not None:
            _require(
                _is_number(self.clip_norm) and self.clip_norm > 0,
                self,
                "clip_norm",
                self.clip_norm,
                "a number > 0, or None",
            )

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the tensors kept per parameter, each of the parameter's shape."""
        return self.state_names

    def state_start(self, state: str) -> float:
        """The value that a fresh state tensor is filled with."""
        del state
        return 0.0

    def sparse_refusal(self) -> str | None:
        """Why this rule can't follow sparse gradients, or None when it can."""
        if self.weight_decay:
            return "weight decay moves every row, and a sparse gradient touches only a few"
        return None

    def torch_optimizer(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """The same rule from `torch.optim` (without clipping, which is not part of it there)."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """The rule as plain values, for a run's configuration."""
        return {"rule": self.name, **{k: v for k, v in asdict(self).items() if v is not None}}


@dataclass(frozen=True, kw_only=True, slots=True)
class SGD(Rule):
    """Stochastic gradient descent, with momentum and Nesterov's form of it."""

    momentum: float = 0.0
    nesterov: bool = False

    name: ClassVar[str] = "sgd"
    state_names: ClassVar[tuple[str, ...]] = ("momentum",)
    torch_states: ClassVar[tuple[str, ...]] = ("momentum_buffer",)
    torch_counts_steps: ClassVar[bool] = False
    # A momentum fed by all workers amplifies their stale gradients (docs/decisions/0005).
    state_per_worker: ClassVar[bool] = True

    def __post_init__(self) -> None:
        Rule.__post_init__(self)
        _require(
            _is_rate(self.momentum) and self.momentum < 1,
            self,
            "momentum",
            self.momentum,
            "0 <= momentum < 1",
        )
        _require(
            not self.nesterov or self.momentum > 0,
            self,
            "momentum",
            self.momentum,
            "a momentum above 0 with nesterov=True",
        )

    @property
    def states(self) -> tuple[str, ...]:
        return self.state_names if self.momentum else ()

    def sparse_refusal(self) -> str | None:
        if self.momentum:
            return "momentum moves every row, and a sparse gradient touches only a few"
        return Rule.sparse_refusal(self)

    def torch_optimizer(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.SGD(
            parameters,
            lr=self.lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Adagrad(Rule):
    """Adagrad: a rate for each weight, falling with the sum of its squared gradients."""

    eps: float = 1e-10
    initial_accumulator: float = 0.0

    name: ClassVar[str] = "adagrad"
    state_names: ClassVar[tuple[str, ...]] = ("sum",)
    torch_states: ClassVar[tuple[str, ...]] = ("sum",)

    def __post_init__(self) -> None:
        Rule.__post_init__(self)
        _require(self.eps > 0, self, "eps", self.eps, "a number > 0")
        _require(
            self.initial_accumulator >= 0,
            self,
            "initial_accumulator",
            self.initial_accumulator,
            "a number >= 0",
        )

    def state_start(self, state: str) -> float:
        del state
        return self.initial_accumulator

    def torch_optimizer(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.Adagrad(
            parameters,
            lr=self.lr,
            weight_decay=self.weight_decay,
            initial_accumulator_value=self.initial_accumulator,
            eps=self.eps,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Adam(Rule):
    """Adam, with weight decay added to the gradient."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    name: ClassVar[str] = "adam"
    state_names: ClassVar[tuple[str, ...]] = ("mean", "square")
    torch_states: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def __post_init__(self) -> None:
        Rule.__post_init__(self)
        _require(
            len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas),
            self,
            "betas",
            self.betas,
            "two numbers, each 0 <= beta < 1",
        )
        _require(self.eps > 0, self, "eps", self.eps, "a number > 0")

    def torch_optimizer(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.Adam(
            parameters, lr=self.lr, betas=self.betas, eps=self.eps, weight_decay=self.weight_decay
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamW(Adam):
    """Adam with weight decay applied to the weight itself."""

    weight_decay: float = 0.01

    name: ClassVar[str] = "adamw"

    def torch_optimizer(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.AdamW(
            parameters, lr=self.lr, betas=self.betas, eps=self.eps, weight_decay=self.weight_decay
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer(Rule):
    """What a parameter server does with replicas that take many local steps between pushes.

    A push is then the difference of the weights, and the server moves by Nesterov's momentum over
    `delay` of them, as asynchronous DiLoCo has it (Liu et al., 2024). It is no optimizer for a
    Trainer: the replicas' own steps need one of the other rules.
    """

    lr: float = 0.7
    momentum: float = 0.9
    delay: int = 1

    name: ClassVar[str] = "outer"
    state_names: ClassVar[tuple[str, ...]] = ("momentum", "sum")

    def __post_init__(self) -> None:
        Rule.__post_init__(self)
        momentum, delay = self.momentum, self.delay
        right = _is_rate(momentum) and momentum < 1
        _require(right, self, "momentum", momentum, "0 <= momentum < 1")
        right = isinstance(delay, int) and not isinstance(delay, bool) and delay >= 1
        _require(right, self, "delay", delay, "a whole number >= 1")
        _require(self.weight_decay == 0, self, "weight_decay", self.weight_decay, "0")
        _require(self.clip_norm is None, self, "clip_norm", self.clip_norm, "None")

    def sparse_refusal(self) -> str | None:
        return "the difference of the weights that it takes is dense"

    def torch_optimizer(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        del parameters
        raise ConfigError(
            "Outer is a parameter server's rule for the differences that replicas push; expected "
            "a rule for gradients, such as SGD(lr=0.05)."
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Accumulate(Rule):
    """What a replica of Downpour does by itself: a plain step, and the gradient joins a sum.

    The sum is what it sends; the rule that counts is the parameter server's (DistBelief, 4.1).
    """

    name: ClassVar[str] = "accumulate"
    state_names: ClassVar[tuple[str, ...]] = ("sum",)
    state_per_worker: ClassVar[bool] = True
