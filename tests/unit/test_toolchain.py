"""A machine that can't build is told what to install, in one sentence."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "build_backend" / "toolchain.py"


def ask(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, env=environment
    )


def test_a_missing_compiler_is_named_with_its_package():
    outcome = ask(PATH="/nowhere")
    assert outcome.returncode == 1
    assert "apt-get install g++" in outcome.stderr
    assert len(outcome.stderr.strip().splitlines()) == 1


def test_a_compiler_named_wrongly_is_named_back():
    outcome = ask(PATH=os.environ["PATH"], CXX="g++-99 -O2")
    assert "'g++-99'" in outcome.stderr


def test_a_machine_that_can_build_hears_nothing():
    outcome = ask(PATH=os.environ["PATH"])
    assert (outcome.returncode, outcome.stderr) == (0, "")


def test_missing_headers_are_named_with_their_package(tmp_path):
    code = (
        f"import sys, sysconfig; sys.path.insert(0, {str(SCRIPT.parent)!r}); import toolchain; "
        f"sysconfig.get_path = lambda name: {str(tmp_path)!r}; print(toolchain.missing_toolchain())"
    )
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "-dev" in outcome.stdout
