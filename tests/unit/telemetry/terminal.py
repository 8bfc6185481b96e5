"""A program on a real pseudo-terminal, and just enough of a terminal to see what it left there."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from manyhands.telemetry import events

_TOKEN = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])|(.)", re.DOTALL)
_TAKE_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
# The display without the package's front door, which takes seconds to import torch.
DISPLAY_ONLY = f"""
import sys, types
sys.modules["manyhands"] = types.ModuleType("manyhands")
sys.modules["manyhands"].__path__ = [{str(Path(events.__file__).parent.parent)!r}]
"""
_DEADLINE_S = 60


class Terminal:
    """Runs `program` (Python source) with all three streams on a pseudo-terminal."""

    def __init__(self, program: str, *, columns: int = 100, **environment: str) -> None:
        self.columns = columns
        self.output = ""
        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        # What a terminal throws away on Ctrl-C, before anybody saw it, no program can mend.
        settings = termios.tcgetattr(theirs)
        settings[3] |= termios.NOFLSH
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL + DISPLAY_ONLY + program],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            cwd=Path(__file__).parent,
            env=clean_environment(TERM="xterm-256color", **environment),
        )
        os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *unused: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def read_until_bottom(self, text: str) -> None:
        """Read until `text` is in the last line on the screen."""
        deadline = time.monotonic() + _DEADLINE_S
        while text not in self.screen[-1]:
            assert self._read(deadline - time.monotonic()), f"no {text!r} in:\n{self.output}"

    def press_ctrl_c(self) -> None:
        os.write(self._ours, b"\x03")

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)

    def end(self) -> int:
        """Read to the end and return the exit status."""
        deadline = time.monotonic() + _DEADLINE_S
        while self._read(deadline - time.monotonic()):
            pass
        return self._process.wait(_DEADLINE_S)

    @property
    def screen(self) -> list[str]:
        """The lines that a person sees, by the few codes that the display uses."""
        return Screen(self.columns).show(self.output)

    @property
    def cursor_hidden(self) -> bool:
        return self.output.rfind("\x1b[?25l") > self.output.rfind("\x1b[?25h")

    def _read(self, seconds: float) -> bool:
        if not select.select([self._ours], [], [], max(seconds, 0))[0]:
            return False
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # how Linux says that the other side is closed
            return False
        self.output += data.decode("utf-8", "replace")
        return bool(data)


class Screen:
    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0

    def show(self, output: str) -> list[str]:
        for private, numbers, code, character in _TOKEN.findall(output):
            if character:
                self._put(character)
            elif not private:
                self._obey(code, int(numbers or 1) if ";" not in numbers else 0)
        return ["".join(line).rstrip() for line in self._lines]

    def _obey(self, code: str, number: int) -> None:
        if code == "A":
            self._row = max(self._row - number, 0)
        elif code == "K":
            assert number == 2, "only whole lines are erased"
            self._lines[self._row] = []
        else:
            assert code == "m", f"a code that this terminal does not know: {code}"

    def _put(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._down()
        else:
            if self._column == self._columns:
                self._column = 0
                self._down()
            line = self._lines[self._row]
            line.extend(" " * (self._column + 1 - len(line)))
            line[self._column] = character
            self._column += 1

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._lines):
            self._lines.append([])


def clean_environment(**changes: str) -> dict[str, str]:
    """This process's environment without what changes how programs draw."""
    drawing = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "LINES", "COLORTERM")
    kept = {name: value for name, value in os.environ.items() if name not in drawing}
    return {**kept, "PYTHONIOENCODING": "utf-8", **changes}
