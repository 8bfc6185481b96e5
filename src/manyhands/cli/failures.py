"""How a command ends when something goes wrong: one line, an exit code, no stack trace."""

from __future__ import annotations

import functools
import signal
import sys
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
        try:
            command(*args, **kwargs)
        except ManyhandsError as error:
            if kwargs.get("debug"):
                raise
            _say(str(error))
            raise typer.Exit(exit_code(error)) from error
        except KeyboardInterrupt as error:
            _say(str(error) or "stopped.")
            raise typer.Exit(getattr(error, "exit_code", EXIT_INTERRUPTED)) from error

    return guarded


def exit_code(error: ManyhandsError) -> int:
    """2 when the user must change what they gave us, 1 for the rest."""
    asks_user = isinstance(error, ConfigError | DataError | CheckpointError)
    return EXIT_USER_MUST_ACT if asks_user else EXIT_FAILED


def _say(message: str) -> None:
    print("manyhands:", " ".join(message.split()), file=sys.stderr)
