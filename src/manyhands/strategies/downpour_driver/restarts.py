"""When a role that died is started again: at once, then later and later, then not any more.

Pure: knows no process and no clock of its own.
"""

from __future__ import annotations

from collections import deque

MOST_DEATHS = 5
WITHIN_S = 30.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


class RestartHistory:
    """The recent deaths of one role. Not thread-safe."""

    def __init__(self) -> None:
        self._deaths: deque[float] = deque(maxlen=MOST_DEATHS)

    def pause_after_death(self, now: float) -> float | None:
        """Seconds until a successor is to start; None when too many have died in a row."""
        self._deaths.append(now)
        recent = sum(now - death <= WITHIN_S for death in self._deaths)
        if recent >= MOST_DEATHS:
            return None
        if recent == 1:
            return 0.0
        return float(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (recent - 2)))


def too_often(reason: str) -> str:
    """Why nobody takes the place of one that died like this again."""
    return f"{reason}, {MOST_DEATHS} deaths within {WITHIN_S:g} s"
