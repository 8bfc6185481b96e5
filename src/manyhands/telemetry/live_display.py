"""A run on a terminal: a line that moves, and above it a line kept for each finished epoch.

Where replicas train against servers, a second line moves under the first.
"""

from __future__ import annotations

import atexit
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from manyhands.telemetry import cluster_wording, incident_wording, wording
from manyhands.telemetry.events import (
    ClusterProgress,
    EpochEnded,
    Event,
    Note,
    Progress,
    RunEnded,
    RunStarted,
    WorkerLost,
)
from manyhands.telemetry.time_left import TimeLeft
from manyhands.telemetry.unbroken import unbroken

_WIDEST_BAR = 30
_NARROWEST_BAR = 5
_GAP = 2
# The terminal echoes ^C behind the line: with no room left for it, it would begin another line.
_SPARE_COLUMNS = 2


class LiveDisplay:
    """Shows the stream on a terminal. Without a thread: it moves when an event comes.

    The cursor is never left hidden and the moving lines are erased on `close`, which also runs
    when the interpreter ends without it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(
            file=stream, force_terminal=True, force_jupyter=False, highlight=False
        )
        self._lines = _MovingLines()
        self._live = Live(self._lines, console=self._console, auto_refresh=False, transient=True)
        self._time_left = TimeLeft()
        self._epochs = 0
        self._sample_name = "samples"

    def handle(self, event: Event) -> None:
        self._time_left.watch(event)
        if isinstance(event, RunStarted):
            self._epochs, self._sample_name = event.epochs, event.sample_name
            self._lines.sample_name = event.sample_name
            self._print(wording.start(event), "bold")
        elif isinstance(event, Progress):
            self._move(event)
        elif isinstance(event, ClusterProgress):
            self._lines.cluster = event  # shown with the next look at progress
        elif isinstance(event, EpochEnded):
            self._keep(event)
        elif isinstance(event, Note):
            self._print(event.message, "yellow" if event.warning else "dim")
        elif isinstance(event, WorkerLost):
            self._print(wording.worker_lost(event), "yellow")
        elif incident := incident_wording.line(event):
            self._print(incident.text, "yellow" if incident.warning else "dim")
        elif isinstance(event, RunEnded):
            self.close()
            self._print(wording.end(event), "red" if event.reason == "failed" else "bold")

    def close(self) -> None:
        """Erase the moving lines and give the terminal back. More than once does no harm."""
        with unbroken():
            self._live.stop()
        atexit.unregister(self._live.stop)

    def _move(self, event: Progress) -> None:
        self._lines.title = wording.epoch_title(event.epoch, self._epochs)
        self._lines.done = event.samples_done / max(event.samples_total, 1)
        self._lines.loss = wording.loss(event.loss)
        self._lines.speed = wording.speed(event.samples_per_s, self._sample_name)
        self._lines.left = self._left()
        self._refresh()

    def _keep(self, event: EpochEnded) -> None:
        self._lines.metrics = wording.figures(event.metrics)
        self._lines.left = self._left()
        fields = wording.epoch_fields(event, self._epochs, self._sample_name)
        while len(fields) > 1 and len("  ".join(fields)) > self._console.width:
            fields.pop()
        self._print("  ".join(fields))

    def _left(self) -> str:
        seconds = self._time_left.seconds
        return f"{wording.duration(seconds)} left" if seconds else ""

    def _refresh(self) -> None:
        with unbroken():
            if not self._live.is_started:
                atexit.register(self._live.stop)
                self._live.start()
                # Rich hides the cursor; shown, it needs no restoring even after kill -9.
                self._console.show_cursor(True)
            self._live.refresh()

    def _print(self, text: str, style: str = "") -> None:
        encoding = self._console.encoding
        known = wording.harmless(text).encode(encoding, "replace").decode(encoding)
        with unbroken():
            self._console.print(Text(known, style=style), soft_wrap=True)


class _MovingLines:
    """One line, or two, that fit the terminal: what matters least goes when it is narrow."""

    def __init__(self) -> None:
        self.title = ""
        self.done = 0.0
        self.speed = ""
        self.loss = ""
        self.metrics: list[str] = []
        self.left = ""
        self.cluster: ClusterProgress | None = None
        self.sample_name = "samples"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        free = options.max_width - _SPARE_COLUMNS - len(self.title) - _GAP
        fields = self._fitting(free - _NARROWEST_BAR)
        bar_width = min(free - sum(len(field) + _GAP for field in fields), _WIDEST_BAR)
        row: list[Text | ProgressBar] = [Text(self.title, style="bold")]
        if bar_width >= _NARROWEST_BAR:
            row.append(ProgressBar(total=1.0, completed=self.done, width=bar_width))
        row.extend(Text(field) for field in fields)
        line = Table.grid(padding=(0, _GAP, 0, 0))
        for _ in row:
            line.add_column(no_wrap=True)
        line.add_row(*row)
        yield line
        if second_line := self._replicas(options.max_width - _SPARE_COLUMNS):
            yield Text(second_line, style="dim", no_wrap=True)

    def _replicas(self, width: int) -> str:
        if self.cluster is None:
            return ""
        return cluster_wording.line(self.cluster, self.sample_name, width=width)

    def _fitting(self, free: int) -> list[str]:
        """The fields that there is room for, in their order on the line."""
        by_weight = [self.loss, self.left, *self.metrics[:1], self.speed, *self.metrics[1:]]
        chosen = set()
        for field in filter(None, by_weight):
            if len(field) + _GAP <= free:
                chosen.add(field)
                free -= len(field) + _GAP
        in_order = [self.speed, self.loss, *self.metrics, self.left]
        return [field for field in in_order if field in chosen]
