"""Small native programs: built when first needed, run pinned, asked line by line.

A peer that speaks for itself in C++ is a program that reads orders on stdin and answers each with
one line. It is stopped (SIGSTOP) while others are measured, since some peers spin when idle.
"""

from __future__ import annotations

import hashlib
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from benchmarks.harness.ending import die_with_the_parent

BUILDS = Path(__file__).parents[2] / "build" / "benchmarks"
FLAGS = ("-std=c++17", "-O3", "-march=native", "-w")
PATIENCE_S = 30.0


class Unavailable(Exception):
    """A peer that can't take part here, and why."""


def build(source: Path, *, arguments: Sequence[str] = (), depends: Sequence[Path] = ()) -> Path:
    """The program made of one C++ file; made again when it or what it depends on has changed."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise Unavailable("no C++ compiler was found")
    files = [source, *sorted(source.parent.glob("*.h")), *depends]
    parts = [*(path.read_bytes() for path in files), " ".join(arguments).encode()]
    program = BUILDS / f"{source.stem}-{hashlib.sha256(b''.join(parts)).hexdigest()[:12]}"
    if not program.exists():
        BUILDS.mkdir(parents=True, exist_ok=True)
        fresh = program.with_suffix(f".{os.getpid()}")
        command = [compiler, *FLAGS, str(source), *arguments, "-lpthread", "-o", str(fresh)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Unavailable(f"{source.name} doesn't build: {done.stderr.strip()[-500:]}")
        fresh.rename(program)
    return program


class Program:
    """A running program. A context manager; leaving it kills the program.

    Pinned to `core` unless None, and in a session of its own, as every contestant.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        core: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        pin = [] if core is None else ["taskset", "-c", str(core)]
        if pin and shutil.which("taskset") is None:
            raise Unavailable("taskset was not found")
        self._process = subprocess.Popen(
            [*pin, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
            preexec_fn=die_with_the_parent,
        )

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def line(self, *, expected_s: float = 0.0) -> str:
        """The next line it prints; Unavailable when it died or says nothing for long."""
        output = self._process.stdout
        assert output is not None
        ready, _, _ = select.select([output], [], [], expected_s + PATIENCE_S)
        line = output.readline().decode().strip() if ready else ""
        if not line:
            raise Unavailable(f"{self._process.args} gave no answer")
        return line

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
