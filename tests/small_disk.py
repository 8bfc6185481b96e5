"""A small file system of its own, to be filled or made read-only; only root can mount one."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """Mounted at `place`, which is made; the test is skipped where that can't be."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small disk needs root")
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "manyhands-test", str(place)]
    outcome = subprocess.run(command, capture_output=True, text=True)
    if outcome.returncode:
        pytest.skip(f"no disk can be mounted here: {outcome.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fill_up(filler: Path) -> None:
    """Write until there is no room for a byte."""
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(512)):
            pass
