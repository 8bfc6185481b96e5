"""Alternating measurement: contestants take turns, and each round gives its own ratio.

A shared machine drifts: two figures taken minutes apart say more about the neighbours than about
the code. So every contestant runs a short slice in every round, in an order that rotates, and a
ratio is formed inside a round before the rounds are summarised.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

Measure = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of several rounds and their extremes."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        ordered = sorted(values)
        return cls(statistics.median(ordered), ordered[0], ordered[-1])

    def figures(self, digits: int = 3) -> dict[str, float]:
        """For the JSON line."""
        return {
            "median": round(self.median, digits),
            "low": round(self.low, digits),
            "high": round(self.high, digits),
        }


@dataclass(frozen=True, slots=True)
class Rounds:
    """Each contestant's rate (more is better), round by round."""

    rates: Mapping[str, tuple[float, ...]]

    def rate(self, name: str) -> Spread:
        return Spread.of(self.rates[name])

    def ratio(self, name: str, to: str) -> Spread:
        """How many times faster than another, formed within each round."""
        pairs = zip(self.rates[name], self.rates[to], strict=True)
        return Spread.of(mine / theirs for mine, theirs in pairs)

    def best(self, names: Iterable[str]) -> str:
        """The fastest of these by median: the one to be compared with."""
        return max(names, key=lambda name: self.rate(name).median)


def alternate(contestants: Mapping[str, Measure], *, rounds: int) -> Rounds:
    """Let everyone take one turn in every round, in rotating order."""
    names = list(contestants)
    rates: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            rates[name].append(contestants[name]())
    return Rounds({name: tuple(values) for name, values in rates.items()})


def calls_per_second(call: Callable[[], object], *, seconds: float) -> float:
    """The rate of a short call that runs in this process, repeated for a slice of time."""
    calls = 0
    began = now = time.perf_counter()
    while now - began < seconds:
        call()
        calls += 1
        now = time.perf_counter()
    return calls / (now - began)


def progress(message: str) -> None:
    """A line for the person who waits: to stderr, because stdout ends in JSON."""
    print(message, file=sys.stderr, flush=True)
