"""Racers: contestants that train in laps, one process of each held back if asked for.

lap()          one short epoch, under the slowdown; images and seconds
race(target)   laps from the first weights on until the accuracy is reached
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import manyhands as mh
from benchmarks.contestants.laps import Lap
from benchmarks.contestants.race import Course, DdpRace, StrategyRace
from benchmarks.harness.crew import Crew
from benchmarks.harness.rounds import progress
from benchmarks.harness.slowdown import Slowdown

SLOWED_TO = 0.25  # of the time: four times slower
LAP_PATIENCE_S = 600.0


@dataclass
class Race:
    """How a race went: the accuracy in percent by seconds of training."""

    seconds: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    images: int = 0

    def reached(self, target: float) -> bool:
        return bool(self.accuracy) and self.accuracy[-1] >= target

    def figures(self, target: float) -> dict[str, Any]:
        return {
            "reached": self.reached(target),
            "seconds": round(self.seconds[-1], 2),
            "images": self.images,
            "images_per_s": round(self.images / self.seconds[-1], 1),
            "accuracy": [round(value, 2) for value in self.accuracy],
            "after_s": [round(value, 2) for value in self.seconds],
        }


class Racer:
    """A crew that trains in laps. A context manager; not thread-safe."""

    def __init__(self, title: str, crew: Crew) -> None:
        self.title = title
        self._crew = crew
        self._ends = ExitStack()
        self._ready = False

    def __enter__(self) -> Racer:
        """Starts without waiting, so that several can start together."""
        self._ends.enter_context(self._crew)
        self._ends.callback(self._say_goodbye)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.close()

    def _say_goodbye(self) -> None:
        """What must happen before the processes end."""

    def wait_until_ready(self) -> None:
        if not self._ready:
            self._crew.answers(expected_s=LAP_PATIENCE_S)
            self._ready = True

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        self.wait_until_ready()
        self._crew.tell(method, *arguments)
        return self._crew.answers(expected_s=LAP_PATIENCE_S)

    def lap(self) -> Lap:
        laps = self._ask("lap")
        return Lap(laps[0].images, max(lap.seconds for lap in laps))

    def images_per_second(self) -> float:
        lap = self.lap()
        return lap.images / lap.seconds

    def accuracy(self) -> float:
        return float(self._ask("accuracy")[0])

    def race(
        self,
        target: float,
        *,
        limit_s: float,
        seed: int = 0,
        late_s: Callable[[], AbstractContextManager[list[float]]] = lambda: nullcontext([]),
    ) -> Race:
        """From the first weights to the target, or to the limit.

        `late_s` watches while nobody trains, and lists what must be added to the time.
        """
        self._ask("start", seed)
        found, seconds = Race(), 0.0
        while not found.reached(target) and seconds < limit_s:
            lap = self.lap()
            seconds += lap.seconds
            found.images += lap.images
            found.seconds.append(seconds)
            with late_s() as late:
                found.accuracy.append(self.accuracy())
            seconds += sum(late)
            progress(f"  {self.title}: {found.accuracy[-1]:.2f}% after {seconds:.1f} s")
        return found


class StrategyRacer(Racer):
    """One of our strategies; `slowed` is the name of the role to hold back."""

    def __init__(
        self,
        title: str,
        strategy: mh.Strategy,
        course: Course,
        *,
        slowed: str | None = None,
        namespace: str | None = None,
    ) -> None:
        super().__init__(title, Crew(title, StrategyRace, 1, strategy, course, namespace))
        self._slowed = slowed

    def lap(self) -> Lap:
        found: Lap = self._ask("lap", self._slowed, SLOWED_TO)[0]
        return found

    def _say_goodbye(self) -> None:
        if self._ready:
            with contextlib.suppress(RuntimeError, OSError):  # it may be what failed
                self._ask("close")


class DdpRacer(Racer):
    """DDP on gloo with a rank for each namespace; the last rank is held back if asked for."""

    def __init__(
        self,
        title: str,
        course: Course,
        *,
        slowed: bool = False,
        namespaces: Sequence[str | None] = (None, None),
        interfaces: Sequence[str] = ("lo", "lo"),
    ) -> None:
        folder = tempfile.TemporaryDirectory()
        meeting_point = str(Path(folder.name) / "ddp")
        ranks = len(namespaces)
        crew = Crew(title, DdpRace, ranks, meeting_point, course, namespaces, interfaces)
        super().__init__(title, crew)
        self._ends.enter_context(folder)
        self._slowed = slowed

    def lap(self) -> Lap:
        with Slowdown({self._crew.pids[-1]: SLOWED_TO} if self._slowed else {}):
            return super().lap()
