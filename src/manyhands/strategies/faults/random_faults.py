"""Chaos: which fault comes next, drawn from a seed. Pure: knows no process and no clock."""

from __future__ import annotations

import random
from collections.abc import Collection

from manyhands.strategies.faults.plan import Fault

_SHORTEST_S = 0.3
_LONGEST_S = 3.0
_KILLS = 0.6  # the share of faults that are kills; the others are pauses and cuts


class RandomFaults:
    """A sequence of faults. The same seed gives the same, as long as the same are alive."""

    def __init__(self, seed: int, every_s: float) -> None:
        self._dice = random.Random(seed)
        self._every_s = every_s

    def pause_s(self) -> float:
        """How long nothing goes wrong now."""
        return self._every_s * self._dice.uniform(0.5, 1.5)

    def draw(self, alive: Collection[str], spared: Collection[str]) -> Fault | None:
        """The next fault; None when everybody who is alive is spared."""
        dice = self._dice
        kind, first, second, length = (dice.random() for _ in range(4))  # always as many
        names = sorted(set(alive) - set(spared))
        if not names:
            return None
        for_s = round(_SHORTEST_S + length * (_LONGEST_S - _SHORTEST_S), 1)
        target = _pick(names, first)
        if kind < _KILLS:
            return Fault(action="kill", targets=(target,))
        others = [name for name in sorted(alive) if name.startswith("server/") and name != target]
        if kind < (1 + _KILLS) / 2 and target.startswith("server/") and others:
            return Fault(action="cut", targets=(target, _pick(others, second)), for_s=for_s)
        return Fault(action="pause", targets=(target,), for_s=for_s)


def _pick(names: list[str], share: float) -> str:
    return names[int(share * len(names))]
