"""Learning-rate schedules: pure functions from progress to a factor on the rule's rate.

A schedule sees the number of the step and how many there will be, never a clock, so that every
worker and every server computes the same rate for the same step without talking to anyone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from manyhands.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Calling a schedule with (step, total_steps), both counted from 0, gives the factor."""

    name: ClassVar[str] = ""

    def __call__(self, step: int, total_steps: int) -> float:
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """The schedule as plain values, for a run's configuration."""
        return {"schedule": self.name, **asdict(self)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant(Schedule):
    """The rule's own rate throughout."""

    name: ClassVar[str] = "constant"

    def __call__(self, step: int, total_steps: int) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class OneCycle(Schedule):
    """Up to the rule's rate over the first part of the run, then down, both along a cosine."""

    warmup: float = 0.1
    start: float = 0.04
    end: float = 0.0

    name: ClassVar[str] = "one-cycle"

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < 1:
            raise ConfigError(
                f"OneCycle: warmup is {self.warmup!r}; expected a share, 0 <= warmup < 1."
            )

    def __call__(self, step: int, total_steps: int) -> float:
        progress = _progress(step, total_steps)
        if progress < self.warmup:
            return _cosine(self.start, 1.0, progress / self.warmup)
        return _cosine(1.0, self.end, (progress - self.warmup) / (1 - self.warmup))


@dataclass(frozen=True, kw_only=True, slots=True)
class Cosine(Schedule):
    """From the rule's rate down to `end` times it, along half a cosine."""

    end: float = 0.0

    name: ClassVar[str] = "cosine"

    def __call__(self, step: int, total_steps: int) -> float:
        return _cosine(1.0, self.end, _progress(step, total_steps))


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps(Schedule):
    """Multiplied by `factor` at each of these shares of the run."""

    at: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1

    name: ClassVar[str] = "steps"

    def __post_init__(self) -> None:
        if not all(0 <= share <= 1 for share in self.at):
            raise ConfigError(f"Steps: at is {self.at!r}; expected shares of the run in 0..1.")

    def __call__(self, step: int, total_steps: int) -> float:
        progress = _progress(step, total_steps)
        passed = sum(progress >= share for share in self.at)
        return float(self.factor**passed)


RateFactor = Schedule | Callable[[int, int], float]


def _progress(step: int, total_steps: int) -> float:
    return min(1.0, step / max(1, total_steps - 1))


def _cosine(start: float, end: float, progress: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2
