"""Replicas and servers as a person sees them: a second line on a terminal, more words in a pipe."""

from __future__ import annotations

import io
import math
import signal
import sys
from dataclasses import replace
from types import FrameType

import pytest
from run_events import cluster, epoch_ended, progress, started
from terminal import Screen, Terminal

from manyhands.telemetry.cluster_wording import line, size
from manyhands.telemetry.events import Event, ReplicaJoined, ReplicaLost, RunEnded
from manyhands.telemetry.live_display import LiveDisplay
from manyhands.telemetry.plain_lines import PlainLines

FULL = (
    "2 replicas 8,120 + 7,950 images/s  staleness 1.2 (max 5)  "
    "pushed 71 MB/s  pulled 68 MB/s  servers 12% 9%"
)
LOST = ReplicaLost(replica=1, pid=7, reason="killed by signal 9", returned=3, replaced_by=8)

WAIT = """
import time
from run_events import *
from manyhands.telemetry.events import *
from manyhands.telemetry.progress import make_progress
from manyhands.telemetry.stream import EventStream

with EventStream([make_progress()]) as stream:
    stream.handle(started())
    try:
        print("waiting", flush=True)
        stream.handle(progress(1, 600))
        stream.handle(ReplicaJoined(replica=2, pid=9))
        while True:
            stream.handle(cluster())
            stream.handle(progress(2, 600))
            time.sleep(0.05)
    except KeyboardInterrupt:
        stream.handle(RunEnded(reason="interrupted", epochs_done=2, seconds=63.0))
"""


def test_every_figure_is_said() -> None:
    assert line(cluster(), "images") == FULL
    trouble = line(cluster(held_up=0.313, refused=1200), "images")
    assert trouble == f"{FULL}  held up 31%  refused 1,200"


def test_the_least_goes_first() -> None:
    troubled = cluster(held_up=0.31, refused=2)
    said = [line(troubled, "images", width=width) for width in range(140)]
    assert all(len(text) <= width for width, text in enumerate(said))
    full = f"{FULL}  held up 31%  refused 2"
    assert said[len(full)] == full
    gone = ["  pulled 68 MB/s", "  pushed 71 MB/s", "  servers 12% 9%", "  held up 31%"]
    for field in gone:
        full = full.replace(field, "")
        assert said[len(full)] == full
    assert said[26] == "2 replicas 16,070 images/s"
    assert said[10] == "2 replicas"
    assert said[9] == ""


@pytest.mark.parametrize("count", [0, 1, 9])
def test_any_number_of_replicas_and_servers(count: int) -> None:
    event = replace(cluster((1000.0,) * count), server_load=(0.5,) * count)
    text = line(event, "samples")
    assert text.startswith(f"{count} replica{'' if count == 1 else 's'}")
    assert text.count("1,000") == text.count("50%") == count
    assert "staleness 1.2" in text


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.9, "1.0 kB"),
        (1234, "1.2 kB"),
        (9_960, "10 kB"),
        (999_999, "1.0 MB"),
        (71.2e6, "71 MB"),
        (3.2e9, "3.2 GB"),
        (5e15, "5000 TB"),
        (math.nan, "? B"),
    ],
)
def test_sizes_in_words(size_bytes: float, words: str) -> None:
    assert size(size_bytes) == words


def lines_of(events: list[tuple[float, Event]]) -> list[str]:
    now = 0.0
    stream = io.StringIO()
    sink = PlainLines(stream, clock=lambda: now)
    for moment, event in events:
        now = moment
        sink.handle(event)
    return stream.getvalue().splitlines()


def test_a_pipe_gets_the_latest_figures_with_quiet_lines_and_epochs() -> None:
    lines = lines_of(
        [
            (0, replace(started(), strategy="downpour", workers=4, replicas=2, servers=2)),
            (1, cluster((1.0, 2.0))),
            (2, cluster()),
            (11, progress(0, 500)),
            (12, cluster((9000.0,))),
            (13, epoch_ended(0)),
        ]
    )
    assert lines[0].endswith("downpour with 2 replicas, 4 workers and 2 servers")
    assert lines[2] == f"epoch 1/3   50%  loss 0.5000  100 images/s  25 s left  {FULL}"
    assert lines[3].startswith("epoch 1/3  loss 0.2500")
    assert "26 s left  1 replica 9,000 images/s  staleness 1.2" in lines[3]
    assert len(lines) == 4


def test_replicas_that_come_and_go_are_told() -> None:
    quiet = replace(LOST, returned=0, replaced_by=None)
    joined = ReplicaJoined(replica=2, pid=9)
    assert lines_of([(0, joined), (0, LOST), (0, replace(LOST, returned=1)), (0, quiet)]) == [
        "replica 2 (process 9) joined",
        "warning: replica 1 (process 7) is lost: killed by signal 9; "
        "3 pieces of its work given back; process 8 takes its place",
        "warning: replica 1 (process 7) is lost: killed by signal 9; "
        "1 piece of its work given back; process 8 takes its place",
        "warning: replica 1 (process 7) is lost: killed by signal 9; nobody takes its place",
    ]


def test_a_second_line_moves_under_the_first() -> None:
    with Terminal(WAIT, columns=120) as terminal:
        terminal.read_until_bottom(FULL)
        assert terminal.screen[-1] == FULL
        assert terminal.screen[-2].startswith("epoch 3/3  ")
        terminal.press_ctrl_c()
        assert terminal.end() == 0
        kept = [line for line in terminal.screen if line]
        assert kept[2:] == [
            "waiting",
            "replica 2 (process 9) joined",
            "interrupted after 2 epochs and 1:03",
        ]


@pytest.mark.parametrize(
    ("columns", "bottom"), [(11, "epoch 3/3"), (14, "2 replicas"), (60, "staleness 1.2 (max 5)")]
)
def test_both_lines_fit_any_terminal_and_leave_nothing_behind(columns: int, bottom: str) -> None:
    with Terminal(WAIT, columns=columns) as terminal:
        terminal.read_until_bottom(bottom)
        terminal.press_ctrl_c()
        assert terminal.end() == 0
        after = "".join(terminal.screen).replace(" ", "").partition("waiting")[2]
        assert after == "replica2(process9)joinedinterruptedafter2epochsand1:03"
        assert not terminal.cursor_hidden


def interrupted_at(call: int) -> tuple[list[str], bool]:
    """The screen after Ctrl-C at the `call`-th call while drawing, and whether there was one."""
    stream, calls = io.StringIO(), 0
    display = LiveDisplay(stream)

    def press_ctrl_c(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            signal.raise_signal(signal.SIGINT)

    display.handle(cluster())
    display.handle(progress(2, 500))
    before = sys.gettrace()
    sys.settrace(press_ctrl_c)
    try:
        display.handle(progress(2, 600))
        display.handle(ReplicaJoined(replica=2, pid=9))
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    display.handle(RunEnded(reason="interrupted", epochs_done=2, seconds=63.0))
    shown = Screen(80).show(stream.getvalue().replace("\n", "\r\n"))
    return [line for line in shown if line], calls >= call


def test_ctrl_c_in_the_middle_of_a_drawing_leaves_nothing_behind() -> None:
    call, pressed = 1, True
    while pressed:
        screen, pressed = interrupted_at(call)
        assert screen[-1] == "interrupted after 2 epochs and 1:03"
        assert screen[:-1] in ([], ["replica 2 (process 9) joined"]), f"pressed at call {call}"
        call += 17
    assert call > 500, "the drawing was not traced"
