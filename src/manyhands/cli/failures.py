"""How a command ends when something goes wrong: one line, an exit code, no stack trace."""

from __future__ import annotations

import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, ParamSpec

import typer

from manyhands.errors import CheckpointError, ConfigError, DataError, ManyhandsError

EXIT_FAILED = 1
EXIT_USER_MUST_ACT = 2
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143

Debug = Annotated[
    bool, typer.Option("--debug", help="On an error, show the whole stack trace as well.")
]

Parameters = ParamSpec("Parameters")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with the sentence that says how to go on."""

    exit_code = EXIT_INTERRUPTED


class Terminated(Interrupted):
    """SIGTERM, which schedulers and containers send, taken for a Ctrl-C."""

    exit_code = EXIT_TERMINATED


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let a SIGTERM end the block as Ctrl-C does; a second one ends the process at once."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def one_line_errors(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """A command whose expected errors become one line on stderr; `debug=True` keeps the trace."""

    @functools.wraps(command)
    def guarded(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        with _noticing_ctrl_c() as pressed:
            try:
                command(*args, **kwargs)
            except KeyboardInterrupt as error:
                _say(str(error) or "stopped.")
                raise typer.Exit(getattr(error, "exit_code", EXIT_INTERRUPTED)) from error
            except Exception as error:
                if kwargs.get("debug") or not (pressed or isinstance(error, ManyhandsError)):
                    raise
                _say("stopped." if pressed else str(error))
                raise typer.Exit(EXIT_INTERRUPTED if pressed else exit_code(error)) from error

    return guarded


@contextmanager
def _noticing_ctrl_c() -> Iterator[list[int]]:
    """Not empty once Ctrl-C was pressed. An import that is interrupted may swallow it (torch's of
    NumPy does) and leave half a module, on which something stumbles later."""
    pressed: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or not _in_main_thread():
        yield pressed
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def exit_code(error: Exception) -> int:
    """2 when the user must change what they gave us, 1 for the rest."""
    asks_user = isinstance(error, ConfigError | DataError | CheckpointError)
    return EXIT_USER_MUST_ACT if asks_user else EXIT_FAILED


def _say(message: str) -> None:
    print("manyhands:", " ".join(message.split()), file=sys.stderr)
