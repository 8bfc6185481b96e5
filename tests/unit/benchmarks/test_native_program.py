"""Native peers: built once, asked line by line, missed politely."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.harness import native_program
from benchmarks.harness.native_program import Program, Unavailable, build

needs_compiler = pytest.mark.skipif(
    not (shutil.which("c++") or shutil.which("g++")), reason="no C++ compiler"
)


@pytest.fixture(autouse=True)
def _builds_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_program, "BUILDS", tmp_path / "builds")


@needs_compiler
def test_a_program_is_built_once_and_again_when_its_source_changes(tmp_path: Path) -> None:
    source = tmp_path / "empty.cpp"
    source.write_text("int main() { return 0; }")

    first = build(source)
    written = first.stat().st_mtime_ns
    again = build(source)
    source.write_text("int main() { return 1; }")
    changed = build(source)

    assert again == first
    assert first.stat().st_mtime_ns == written
    assert changed != first


@needs_compiler
def test_a_source_that_does_not_build_is_reported_with_the_compilers_words(tmp_path: Path) -> None:
    source = tmp_path / "wrong.cpp"
    source.write_text("int main() { return nonsense; }")

    with pytest.raises(Unavailable, match="nonsense"):
        build(source)


def test_a_program_answers_line_by_line() -> None:
    with Program(["cat"]) as echo:
        echo.tell("one")
        assert echo.line() == "one"
        echo.pause()
        echo.resume()
        echo.tell("two")
        assert echo.line() == "two"


def test_a_program_that_ends_is_unavailable() -> None:
    with Program(["true"]) as gone, pytest.raises(Unavailable, match="no answer"):
        gone.line()


def test_a_stopped_program_does_not_outlive_a_killed_benchmark() -> None:
    benchmark = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from benchmarks.harness.native_program import Program; import time; "
            "p = Program(['cat']); p.pause(); print(p._process.pid, flush=True); time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
        cwd=Path(native_program.__file__).parents[2],
    )
    assert benchmark.stdout is not None
    program = psutil.Process(int(benchmark.stdout.readline()))

    benchmark.send_signal(signal.SIGKILL)
    benchmark.communicate()

    deadline = time.monotonic() + 30.0
    while program.is_running() and program.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)
