"""A race on a wide output layer: everyone trains in turns, and P@1 is taken after each turn."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np

from benchmarks.contestants.laps import Lap
from benchmarks.harness.crew import Crew
from benchmarks.harness.rounds import Rounds, progress

PATIENCE_S = 300.0


@dataclass
class Curve:
    """P@1 in percent by seconds of training, and how many samples a second each turn trained."""

    seconds: list[float] = field(default_factory=lambda: [0.0])
    precision: list[float] = field(default_factory=lambda: [0.0])
    samples: list[int] = field(default_factory=lambda: [0])
    rates: list[float] = field(default_factory=list)

    def add(self, lap: Lap, precision: float) -> None:
        self.seconds.append(self.seconds[-1] + lap.seconds)
        self.samples.append(self.samples[-1] + lap.images)
        self.rates.append(lap.images / lap.seconds)
        self.precision.append(precision)

    def best(self) -> float:
        return max(self.precision)

    def seconds_to(self, precision: float) -> float | None:
        """When it first had this P@1, on straight lines between the turns; None if never."""
        highest = np.maximum.accumulate(self.precision)
        at = bisect.bisect_left(highest, precision)
        if at == len(highest):
            return None
        if at == 0:
            return 0.0
        part = (precision - highest[at - 1]) / (highest[at] - highest[at - 1])
        return float(self.seconds[at - 1] + part * (self.seconds[at] - self.seconds[at - 1]))

    def figures(self) -> dict[str, Any]:
        return {
            "after_s": [round(seconds, 2) for seconds in self.seconds[1:]],
            "samples": self.samples[1:],
            "p@1": [round(value, 2) for value in self.precision[1:]],
        }


class WideRacer:
    """A job of `wide_training` in a process of its own, standing still unless it is its turn."""

    def __init__(self, title: str, job: Callable[..., Any], *arguments: Any) -> None:
        self.title = title
        self.curve = Curve()
        self._crew = Crew(title, job, 1, *arguments)
        self._ready = False

    def __enter__(self) -> WideRacer:
        """Starts without waiting, so that several can start together."""
        self._crew.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.ask("close")
        self._crew.close()

    def wait_until_ready(self) -> None:
        if not self._ready:
            self._crew.answers(expected_s=PATIENCE_S)
            self._ready = True

    def ask(self, method: str, *arguments: Any) -> Any:
        self.wait_until_ready()
        self._crew.tell(method, *arguments)
        return self._crew.answers(expected_s=PATIENCE_S)[0]

    def turn(self, seconds: float) -> None:
        lap = self.ask("train", seconds)
        self.curve.add(lap, self.ask("precision"))
        progress(
            f"  {self.title}: {self.curve.rates[-1]:,.0f} samples/s, "
            f"P@1 {self.curve.precision[-1]:.2f} after {self.curve.seconds[-1]:.1f} s"
        )


def race(racers: Mapping[str, WideRacer], turn_s: Mapping[str, float], *, rounds: int) -> Rounds:
    """Everyone takes a turn in every round, in rotating order; the samples/s of each."""
    for racer in racers.values():
        racer.wait_until_ready()
    names = list(racers)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            racers[name].turn(turn_s[name])
    return Rounds({name: tuple(racer.curve.rates) for name, racer in racers.items()})
