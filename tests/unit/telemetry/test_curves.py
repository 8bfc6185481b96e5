"""The picture of the learning curves: what is drawn where, and that it is a picture."""

from __future__ import annotations

import gc
import math
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from run_events import epoch_ended, progress, started

from manyhands.telemetry import curves
from manyhands.telemetry.curves import CurvePicture, write_curves
from manyhands.telemetry.event_log import EventLog


def history(epochs: int) -> list[dict[str, Any]]:
    return [
        {
            "epoch": epoch,
            "train_loss": 2.0 * math.exp(-epoch),
            "lr": 0.1,
            "seconds": 1.0,
            "loss": 0.5,
            "accuracy": 1 - math.exp(-epoch - 1),
            "perplexity": 3.0 + epoch,
        }
        for epoch in range(epochs)
    ]


def test_nothing_of_a_picture_stays_in_memory(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    def figures() -> int:
        return sum(type(thing) is Figure for thing in gc.get_objects())

    gc.collect()
    before = figures()
    gc.disable()  # as in a driver that makes few objects: nobody collects by chance
    try:
        write_curves(tmp_path / "curves.png", history(3), "Net")
        assert figures() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("epochs", [0, 1, 2, 200])
def test_any_length_gives_a_picture_and_nothing_else(tmp_path: Path, epochs: int) -> None:
    write_curves(tmp_path / "curves.png", history(epochs), "Net")
    with Image.open(tmp_path / "curves.png") as picture:
        picture.load()
        assert picture.format == "PNG"
        assert min(picture.size) >= 300
        assert len(set(picture.convert("L").tobytes())) > 10
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_strange_values_are_no_obstacle(tmp_path: Path, value: float) -> None:
    write_curves(tmp_path / "curves.png", [{"train_loss": value, "accuracy": value}] * 3)
    assert (tmp_path / "curves.png").exists()


def test_losses_shares_and_other_metrics_have_their_panels() -> None:
    figure = curves._draw(history(3), "")
    drawn = {
        axes.get_title(loc="left"): {
            str(line.get_label()).partition(",")[0]: list(line.get_ydata()) for line in axes.lines
        }
        for axes in figure.axes
    }
    assert {panel: list(lines) for panel, lines in drawn.items()} == {
        "loss": ["training", "validation"],
        "validation": ["accuracy"],
        "perplexity": ["perplexity"],
    }
    assert drawn["perplexity"]["perplexity"] == [3.0, 4.0, 5.0]
    assert list(figure.axes[0].lines[0].get_xdata()) == [1, 2, 3]


def test_metrics_in_a_table_of_their_own_and_gaps_are_understood() -> None:
    panels = curves._panels([{"train_loss": 1.0}, {"train_loss": None, "metrics": {"f1": 0.5}}])
    assert panels["loss"]["training"] == [1.0, pytest.approx(math.nan, nan_ok=True)]
    assert panels["validation"]["f1"] == [pytest.approx(math.nan, nan_ok=True), 0.5]


def test_a_failed_drawing_keeps_the_old_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_curves(tmp_path / "curves.png", history(2))
    before = (tmp_path / "curves.png").read_bytes()

    def fail(source: Path, target: Path) -> None:
        raise OSError("no space")

    monkeypatch.setattr(curves.os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        write_curves(tmp_path / "curves.png", history(3))
    assert (tmp_path / "curves.png").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """What is drawn, instead of drawing it."""
    calls: list[list[Any]] = []
    monkeypatch.setattr(curves, "write_curves", lambda path, h, title: calls.append(list(h)))
    return calls


def test_the_picture_is_drawn_now_and_then_and_at_the_end(
    tmp_path: Path, drawn: list[list[Any]]
) -> None:
    now = 0.0
    sink = CurvePicture(tmp_path / "curves.png", redraw_every_s=30, clock=lambda: now)
    sink.handle(started())
    for epoch in range(7):
        now += 10
        sink.handle(progress(epoch, 1000))
        sink.handle(epoch_ended(epoch))
    sink.close()
    assert [len(history) for history in drawn] == [3, 6, 7]


def test_without_an_epoch_nothing_is_drawn(tmp_path: Path, drawn: list[list[Any]]) -> None:
    sink = CurvePicture(tmp_path / "curves.png")
    sink.handle(started())
    sink.close()
    assert drawn == []


def test_a_resumed_run_shows_the_earlier_epochs(tmp_path: Path, drawn: list[list[Any]]) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    for event in (started(), epoch_ended(0, 0.9), epoch_ended(1, 0.8), epoch_ended(2, 0.7)):
        log.handle(event)
    for event in (started(first_epoch=1), epoch_ended(1, 0.5)):
        log.handle(event)
    log.close()
    sink = CurvePicture(tmp_path / "curves.png")
    sink.handle(started(first_epoch=2))
    sink.handle(epoch_ended(2, 0.4))
    sink.close()
    assert [epoch["train_loss"] for epoch in drawn[-1]] == [0.9, 0.5, 0.4]
