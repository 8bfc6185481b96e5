"""The learning curves of a run as a picture."""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.telemetry.event_log import read_events
from manyhands.telemetry.events import EpochEnded, Event, RunStarted
from manyhands.telemetry.wording import figure, is_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NOT_METRICS = {"epoch", "step", "samples", "seconds", "lr", "samples_per_s", "train_loss"}
_TRAINING = "#8a93a3"
_COLOURS = ("#1f6fb2", "#d1602f", "#3a8f5c", "#8a5bb5", "#b0892a", "#c04a78")
_INK = "#333a45"
_MOST_DOTS = 40

Curves = dict[str, list[float]]


class CurvePicture:
    """Keeps the picture of a run at `path` up to date: every half minute, and when closed.

    The earlier epochs of a resumed run are read from `log`, the event log beside the picture
    unless told otherwise.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        log: Path | str | None = None,
        redraw_every_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = Path(path)
        self._log = Path(log) if log is not None else self._path.with_name("events.jsonl")
        self._redraw_every_s = redraw_every_s
        self._clock = clock
        self._last_drawn = clock()
        self._drawn_epochs = 0
        self._title = ""
        self._history: list[Mapping[str, Any]] = []

    def handle(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            replicas = f"replicas: {event.replicas}, " if event.replicas else ""
            self._title = f"{event.model}, {event.strategy}, {replicas}workers: {event.workers}"
            self._history = _earlier_epochs(self._log, event.first_epoch)
            self._drawn_epochs = len(self._history)
        elif isinstance(event, EpochEnded):
            self._history.append({"train_loss": event.train_loss, **event.metrics})
            if self._clock() - self._last_drawn >= self._redraw_every_s:
                self._draw()

    def close(self) -> None:
        if len(self._history) > self._drawn_epochs:
            self._draw()

    def _draw(self) -> None:
        self._drawn_epochs = len(self._history)
        write_curves(self._path, self._history, self._title)
        self._last_drawn = self._clock()


def _earlier_epochs(log: Path, first_epoch: int) -> list[Mapping[str, Any]]:
    """The epochs before `first_epoch`; one that was trained twice counts as trained last."""
    if first_epoch == 0 or not log.exists():
        return []
    found = {e.get("epoch"): e for e in read_events(log) if e.get("event") == "EpochEnded"}
    return [found.get(epoch, {}) for epoch in range(first_epoch)]


def write_curves(path: Path | str, history: Sequence[Mapping[str, Any]], title: str = "") -> None:
    """Draw `history` into a PNG, replacing what is there once the new picture is complete.

    An entry of `history` is an epoch: `train_loss`, and every other figure by its name is taken
    for a validation metric. Panels: the losses; metrics that are shares of one; each other metric.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.partial")
    try:
        with _nothing_left_behind():
            _draw(history, title).savefig(partial, format="png")
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _nothing_left_behind() -> Iterator[None]:
    """Free at once what the block drops: a figure is 3 MB of objects that refer to each other, and
    in a process that makes few others nobody would collect them for a long time."""
    collecting = gc.isenabled()
    gc.disable()  # so that at the end they are all in the youngest generation
    try:
        yield
    finally:
        gc.collect(0)
        if collecting:
            gc.enable()


def _draw(history: Sequence[Mapping[str, Any]], title: str) -> Figure:
    # Imported here: a run without a picture need not wait for it. Figure alone, without pyplot,
    # draws with Agg and touches neither a display nor the user's own figures.
    from matplotlib.figure import Figure

    panels = _panels(history)
    figure = Figure(figsize=(5.2 * len(panels), 3.8), dpi=120, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)  # type: ignore[union-attr, call-arg]
    for axes, (name, curves) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        _draw_panel(axes, name, curves)
    if title:
        figure.suptitle(title, color=_INK, fontsize=11)
    return figure


def _panels(history: Sequence[Mapping[str, Any]]) -> dict[str, Curves]:
    """What is drawn where: panel title -> curve name -> a value per epoch."""
    epochs = [_figures_of(entry) for entry in history]
    panels: dict[str, Curves] = {"loss": {"training": _curve(epochs, "train_loss")}}
    for name in dict.fromkeys(name for epoch in epochs for name in epoch):
        if name == "loss":
            panels["loss"]["validation"] = _curve(epochs, name)
        elif name not in _NOT_METRICS:
            panel = "validation" if is_share(name) and name != "error" else name
            panels.setdefault(panel, {})[name] = _curve(epochs, name)
    return panels


def _figures_of(entry: Mapping[str, Any]) -> dict[str, float]:
    """An epoch's figures, whether its metrics stand beside the rest or in a table of their own."""
    nested = entry.get("metrics")
    flat = {**entry, **(nested if isinstance(nested, Mapping) else {})}
    return {name: float(value) for name, value in flat.items() if hasattr(value, "__float__")}


def _curve(epochs: Sequence[Mapping[str, float]], name: str) -> list[float]:
    values = (epoch.get(name, math.nan) for epoch in epochs)
    return [value if math.isfinite(value) else math.nan for value in values]


def _draw_panel(axes: Axes, name: str, curves: Curves) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter

    colours = iter(_COLOURS * (1 + len(curves) // len(_COLOURS)))
    for label, values in curves.items():
        _draw_curve(axes, label, values, _TRAINING if label == "training" else next(colours))
    if name == "loss" and _spans_decades(curves):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif all(is_share(label) for label in curves) and _all_within_one(curves):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("epoch", color=_INK)
    axes.set_title(name, color=_INK, fontsize=10, loc="left")
    _tidy(axes)


def _draw_curve(axes: Axes, label: str, values: list[float], colour: str) -> None:
    dots = "o" if len(values) <= _MOST_DOTS else ""
    if known := [value for value in values if not math.isnan(value)]:
        label = f"{label}, last {figure(label, known[-1])}"
    axes.plot(
        range(1, len(values) + 1),
        values,
        marker=dots,
        markersize=4,
        linewidth=1.8,
        color=colour,
        label=label,
    )


def _tidy(axes: Axes) -> None:
    axes.grid(True, color="#e6e8ec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b9bfc9")
    axes.tick_params(colors=_INK, labelsize=9, which="both")
    axes.legend(frameon=False, fontsize=9, labelcolor=_INK)
    axes.margins(x=0.03)


def _spans_decades(curves: Curves) -> bool:
    known = [value for values in curves.values() for value in values if not math.isnan(value)]
    return bool(known) and min(known) > 0 and max(known) / min(known) > 20


def _all_within_one(curves: Curves) -> bool:
    return all(0 <= value <= 1 for values in curves.values() for value in values if value == value)
