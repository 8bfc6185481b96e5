"""What a person sees: live on a real pseudo-terminal, plain lines in a pipe, nothing left over."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from run_events import epoch_ended, progress, started
from terminal import DISPLAY_ONLY, Terminal, clean_environment

from manyhands.telemetry.events import EpochEnded, Event, Note, RunEnded, WorkerLost
from manyhands.telemetry.plain_lines import PlainLines
from manyhands.telemetry.progress import make_progress
from manyhands.telemetry.time_left import TimeLeft

RUN = """
import sys, time
from run_events import *
from manyhands.telemetry.events import *
from manyhands.telemetry.progress import make_progress
from manyhands.telemetry.stream import EventStream

def end(reason):
    metrics = {"accuracy": 0.9961}
    return RunEnded(reason=reason, epochs_done=2, seconds=63.0, metrics=metrics)

with EventStream([make_progress()]) as stream:
    stream.handle(started())
    stream.handle(progress(0, 500))
    stream.handle(WorkerLost(worker=1, pid=7, reason="killed by signal 9", replaced_by=8))
    print("printed by the user")
    stream.handle(Note(message="look \\x1b[31m[b]here\\x1b]0;title\\x07\\x08", warning=True))
    stream.handle(epoch_ended(0))
    stream.handle(progress(1, 600))
    ENDING
"""
WAIT = """
    try:
        print("waiting", flush=True)
        while True:
            stream.handle(progress(2, 600))
            time.sleep(0.001)
    except KeyboardInterrupt:
        stream.handle(end("interrupted"))
"""
ABOVE = [
    "Net with 431,080 parameters, hogwild with 2 workers",
    "3 epochs of 1,000 images, in /runs/net-1",
    "worker 1 (process 7) died: killed by signal 9; process 8 takes its place",
    "printed by the user",
    "look [b]here",
    "epoch 1/3  loss 0.2500  accuracy 98.71%  100 images/s  10 s",
]


def program(ending: str) -> str:
    return RUN.replace("    ENDING\n", ending if ending.startswith("\n") else f"    {ending}\n")


def test_a_finished_run_leaves_its_epochs_and_its_end() -> None:
    with Terminal(program('stream.handle(end("finished"))')) as terminal:
        assert terminal.end() == 0
        assert terminal.screen == [
            *ABOVE,
            "finished after 2 epochs and 1:03  accuracy 99.61%",
            "",
        ]
        assert not terminal.cursor_hidden


def test_the_moving_line_says_it_all() -> None:
    with Terminal(program(WAIT)) as terminal:
        terminal.read_until_bottom("epoch 3/3")
        assert re.fullmatch(
            r"epoch 3/3  [━╸╺]+  100 images/s  loss 0\.5000  accuracy 98\.71%  [\d.]+ s left",
            terminal.screen[-1],
        )
        assert not terminal.cursor_hidden
        assert terminal.screen[:-1] == [*ABOVE, "waiting"]


@pytest.mark.parametrize("columns", [12, 80, 100])
def test_ctrl_c_at_any_moment_leaves_nothing_behind(columns: int) -> None:
    with Terminal(program(WAIT), columns=columns) as terminal:
        terminal.read_until_bottom("epoch 3/3")
        terminal.press_ctrl_c()
        assert terminal.end() == 0
        after = "".join(terminal.screen).replace(" ", "").partition("waiting")[2]
        assert after == "interruptedafter2epochsand1:03accuracy99.61%"
        assert terminal.screen[-1] == ""
        assert not terminal.cursor_hidden


@pytest.mark.parametrize("closed", [True, False])
def test_an_exception_leaves_nothing_behind_but_its_message(closed: bool) -> None:
    source = program('raise RuntimeError("boom")')
    if not closed:
        source = source.replace(
            "with EventStream([make_progress()]) as stream:",
            "if True:\n    stream = EventStream([make_progress()])",
        )
    with Terminal(source) as terminal:
        assert terminal.end() == 1
        assert not any("left" in line for line in terminal.screen)
        assert "RuntimeError: boom" in terminal.screen
        assert not terminal.cursor_hidden


def test_even_kill_9_leaves_the_cursor() -> None:
    with Terminal(program(WAIT)) as terminal:
        terminal.read_until_bottom("epoch 3/3")
        terminal.kill()
        assert terminal.end() == -9
        assert not terminal.cursor_hidden


@pytest.mark.parametrize("columns", [12, 30, 50, 80])
def test_the_moving_line_is_one_line_on_any_terminal(columns: int) -> None:
    source = program("pass").partition("stream.handle(WorkerLost")[0]
    moving = "    for n in range(5): stream.handle(progress(0, 100 * n))\n    print('x' * 5)\n"
    with Terminal(source.rstrip(" ") + moving, columns=columns) as terminal:
        assert terminal.end() == 0
        screen = [line for line in terminal.screen if line]
    assert screen[-1] == "xxxxx"
    assert not any("epoch 1/3" in line for line in screen)


def test_no_color_is_respected() -> None:
    coloured = re.compile(r"\x1b\[[0-9;]*(?:3|4|9|10)\d[;m]")
    for environment, expected in (({}, True), ({"NO_COLOR": "1"}, False)):
        with Terminal(program('stream.handle(end("finished"))'), **environment) as terminal:
            assert terminal.end() == 0
            assert bool(coloured.search(terminal.output)) == expected


def test_a_dumb_terminal_gets_plain_lines() -> None:
    source = "import os; os.environ['TERM'] = 'dumb'\n" + program('stream.handle(end("finished"))')
    with Terminal(source) as terminal:
        assert terminal.end() == 0
        assert "\x1b" not in terminal.output
        assert "finished after 2 epochs" in terminal.output


def test_a_pipe_gets_plain_lines_and_no_control_characters() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DISPLAY_ONLY + program('stream.handle(end("finished"))')],
        capture_output=True,
        check=True,
        cwd=Path(__file__).parent,
        env=clean_environment(TERM="xterm-256color", FORCE_COLOR="1"),
    )
    text = done.stdout.decode()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    assert re.search(
        r"^epoch 1/3  loss 0\.2500  accuracy 98\.71%  100 images/s  10 s  .* left$", text, re.M
    )
    assert "warning: worker 1 (process 7) died" in text
    assert "warning: look [b]here" in text
    assert done.stderr == b""


def lines_of(events: list[tuple[float, Event]], encoding: str = "utf-8") -> list[str]:
    now = 0.0
    raw = io.BytesIO()
    sink = PlainLines(io.TextIOWrapper(raw, encoding=encoding), clock=lambda: now)
    for moment, event in events:
        now = moment
        sink.handle(event)
    sink.close()
    return raw.getvalue().decode(encoding).splitlines()


def test_a_pipe_gets_a_line_every_ten_quiet_seconds() -> None:
    looks: list[tuple[float, Event]] = [(t / 4, progress(0, t)) for t in range(100)]
    lines = lines_of([(0, started()), *looks, (25, epoch_ended(0))])
    assert [line[:17] for line in lines[2:]] == [
        "epoch 1/3    4%  ",
        "epoch 1/3    8%  ",
        "epoch 1/3  loss 0",
    ]
    assert lines[2] == "epoch 1/3    4%  loss 0.5000  100 images/s  30 s left"


def test_a_stream_that_knows_no_umlauts_still_gets_its_lines() -> None:
    assert lines_of([(0, Note(message="für"))], encoding="ascii") == ["f?r"]


def test_the_last_epoch_and_odd_figures_read_well() -> None:
    odd = EpochEnded(
        epoch=2,
        step=1,
        samples=5,
        seconds=0.0,
        train_loss=float("nan"),
        lr=0.1,
        metrics={"loss": 1e-7, "accuracy": float("nan"), "perplexity": 12345.678},
    )
    ended = RunEnded(reason="failed", epochs_done=1, seconds=7384.0, message="the loss is nan")
    lines = lines_of([(0, started()), (1, odd), (2, ended)])
    assert lines[2:] == [
        "epoch 3/3  loss nan  accuracy nan  perplexity 1.235e+04  validation loss 1e-07  0.0 s",
        "failed after 1 epoch and 2:03:04",
    ]


def test_a_program_without_a_console_gets_no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    sink = make_progress()
    sink.handle(started())
    sink.handle(WorkerLost(worker=1, pid=7, reason="killed", replaced_by=None))
    sink.close()


def test_time_left_goes_by_speed_first_and_by_whole_epochs_then() -> None:
    now = 0.0
    left = TimeLeft(clock=lambda: now)
    left.watch(started(epochs=3))
    assert left.seconds is None
    left.watch(progress(0, 500))  # 1000 samples at 100 a second: 10 s an epoch
    assert left.seconds == pytest.approx(25)
    now = 20.0  # with validation the epoch took twice as long
    left.watch(epoch_ended(0))
    assert left.seconds == pytest.approx(40)
    left.watch(progress(1, 500))
    assert left.seconds == pytest.approx(30)
    now = 40.0
    left.watch(epoch_ended(1))
    left.watch(epoch_ended(2))
    assert left.seconds == 0
