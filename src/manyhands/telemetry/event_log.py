"""The event log: a run's events as JSON lines, for programs and for tomorrow's questions."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from manyhands.telemetry.events import ClusterProgress, Event, Progress


class EventLog:
    """Appends each event to a file as one line, and flushes it.

    A resumed run appends to the log of the run before. Looks at progress, and those at the
    cluster, are thinned to one in `progress_every_s` seconds. Figures that JSON does not know
    (NaN, infinity) become null.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        progress_every_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._progress_every_s = progress_every_s
        self._next_look: dict[type[Event], float] = {}
        self._file = Path(path).open("a+b")  # noqa: SIM115 - closed by close()
        self._end_broken_line()

    def handle(self, event: Event) -> None:
        if isinstance(event, Progress | ClusterProgress) and not self._is_due(type(event)):
            return
        line = json.dumps(_as_json(event), allow_nan=False)
        self._file.write(line.encode("utf-8") + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _is_due(self, look: type[Event]) -> bool:
        now = self._clock()
        if now < self._next_look.get(look, -math.inf):
            return False
        self._next_look[look] = now + self._progress_every_s
        return True

    def _end_broken_line(self) -> None:
        """Begin on a line of our own when a killed run left half a line."""
        if self._file.tell() > 0:
            self._file.seek(-1, 2)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")


def read_events(path: Path | str) -> list[dict[str, Any]]:
    """The events of a log, oldest first. Lines that a killed run left half-written are passed."""
    events = []
    for line in Path(path).read_bytes().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            events.append(event)
    return events


def _as_json(event: Event) -> dict[str, Any]:
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    return {"time": now, "event": type(event).__name__, **_plain(event)}


def _plain(value: object) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "__float__"):  # also what users' metrics return: NumPy and torch scalars
        number = float(value)
        return number if math.isfinite(number) else None
    return str(value)
