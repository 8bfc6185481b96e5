"""Files and folders that appear whole or not at all.

Everything is written inside a hidden partial folder beside its target, forced to the disk, and
renamed into place: a reader sees the old state or the new one, whenever the writer is killed or
the power fails. What a killed writer leaves is recognised by its name and removed by the next.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PARTIAL = ".partial-"


@contextmanager
def replaced_file(target: Path) -> Iterator[Path]:
    """Yield a path to write to; the file becomes `target` when the block ends without error."""
    remove_leftovers(target.parent, target.name)
    with _partial_folder(target) as partial:
        written = partial / target.name
        yield written
        # Writers that go through their own temporary file leave it readable by its owner alone.
        written.chmod(partial.stat().st_mode & 0o666)
        _force_to_disk(written)
        os.replace(written, target)
    _force_to_disk(target.parent)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a folder to fill; it becomes `target`, which must not exist, when the block ends."""
    with _partial_folder(target) as partial:
        yield partial
        for written in partial.iterdir():
            written.chmod(partial.stat().st_mode & 0o666)
            _force_to_disk(written)
        _force_to_disk(partial)
        os.rename(partial, target)
    _force_to_disk(target.parent)


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Remove what killed writers of `name` (or of anything) left in `folder`."""
    for leftover in folder.glob(f".{name}{_PARTIAL}*"):
        shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def _partial_folder(target: Path) -> Iterator[Path]:
    partial = target.with_name(f".{target.name}{_PARTIAL}{uuid.uuid4().hex[:12]}")
    partial.mkdir()
    try:
        yield partial
    finally:
        # Gone already when it was renamed into place.
        shutil.rmtree(partial, ignore_errors=True)


def _force_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
