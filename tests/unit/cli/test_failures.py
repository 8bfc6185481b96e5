"""How commands end when something goes wrong: exit codes, one line, no stack trace."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest
import typer

from manyhands.cli.failures import Interrupted, exit_code, one_line_errors
from manyhands.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    ManyhandsError,
    ModelError,
    TrainingDiverged,
    WorkerError,
)

DIVERGED = TrainingDiverged("nan", epoch=1, step=2, indices=[3])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (ModelError("x"), 2),
        (DataError("x"), 2),
        (CheckpointError("x"), 2),
        (DIVERGED, 1),
        (WorkerError("x"), 1),
        (ManyhandsError("x"), 1),
    ],
)
def test_exit_codes_say_who_must_act(error: ManyhandsError, code: int) -> None:
    assert exit_code(error) == code


def run(error: BaseException, *, debug: bool = False) -> int:
    @one_line_errors
    def command(debug: bool = False) -> None:
        raise error

    with pytest.raises(typer.Exit) as ended:
        command(debug=debug)
    return ended.value.exit_code


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(DataError("two\n  lines.")) == 2
    assert capsys.readouterr().err == "manyhands: two lines.\n"


def test_interruption_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Interrupted("stopped; resume with: manyhands resume runs/a")) == 130
    assert capsys.readouterr().err == "manyhands: stopped; resume with: manyhands resume runs/a\n"


def test_interruption_before_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "manyhands: stopped.\n"


def test_debug_keeps_the_trace() -> None:
    @one_line_errors
    def command(debug: bool = False) -> None:
        raise DataError("x")

    with pytest.raises(DataError):
        command(debug=True)


def test_other_exceptions_are_our_own_mistakes_and_keep_their_trace() -> None:
    @one_line_errors
    def command() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError):
        command()


@pytest.mark.parametrize("stumble", [AttributeError("half a module"), ConfigError("half a module")])
def test_a_ctrl_c_that_an_import_swallows_is_a_ctrl_c(
    stumble: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    @one_line_errors
    def command() -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise stumble

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(typer.Exit) as ended:
            command()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == "manyhands: stopped.\n"
