"""The run directory: where everything that a run leaves has its place.

runs/mnist-20261115-204201/
    run.toml             the configuration
    checkpoints/         the last complete states of the training
    store/               until the run is complete: what parameter servers wrote back last
    model.safetensors    the weights, the latest or the final ones
    events.jsonl         what happened, one JSON object a line
    tensorboard/         the curves for TensorBoard
    curves.png           the learning curves as a picture
    control              only while the run goes on: where it listens for commands
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from manyhands.errors import CheckpointError, ConfigError

_CONFIG = "run.toml"


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The place of one run. Knows names and paths; reads and writes nothing in them itself."""

    path: Path

    @classmethod
    def create(cls, path: Path | str, name: str | None = None) -> RunDirectory:
        """Make a new run directory: exactly `path`, or a fresh `path/name-DATE-TIME`.

        An existing directory is taken only when it is empty: nothing is ever overwritten.
        """
        place = Path(path).expanduser().absolute()
        try:
            made = _claim_empty(place) if name is None else _make_unique(place, name)
        except OSError as error:
            raise ConfigError(
                f"The run directory {place} can't be made: {error.strerror or error}. "
                "Name a folder that can be written to."
            ) from error
        if not os.access(made, os.W_OK | os.X_OK):
            raise ConfigError(
                f"The run directory {made} can't be written to. "
                "Change its permissions or name another folder."
            )
        return cls(made)

    @classmethod
    def open(cls, path: Path | str) -> RunDirectory:
        """Open the directory of an earlier run."""
        place = Path(path).expanduser().absolute()
        if not place.exists():
            raise CheckpointError(f"There is no run directory {place}: nothing has that name.")
        if not place.is_dir():
            raise CheckpointError(f"{place} is not a run directory but a file.")
        if not (place / _CONFIG).is_file():
            raise CheckpointError(
                f"{place} is not a run directory: it holds no {_CONFIG}.{_suggestion(place)}"
            )
        return cls(place)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep other processes from training in this directory while the block runs.

        The lock belongs to this process: a child does not inherit it and it dies with us, so a
        killed run can be resumed at once.
        """
        with (self.path / ".lock").open("a+") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ConfigError(
                    f"The run in {self.path} is still going on in another process. "
                    "Wait for it or stop it first."
                ) from error
            yield

    @property
    def config_file(self) -> Path:
        return self.path / _CONFIG

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model_file(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def events_file(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def curves_file(self) -> Path:
        return self.path / "curves.png"


def _claim_empty(place: Path) -> Path:
    if place.is_dir() and any(place.iterdir()):
        known = (place / _CONFIG).is_file()
        advice = "Resume that run, or name" if known else "Name"
        raise ConfigError(
            f"The run directory {place} exists and {'holds a run' if known else 'is not empty'}. "
            f"{advice} a new or an empty folder: a run never overwrites anything."
        )
    _make_parents(place.parent)
    place.mkdir(exist_ok=True)
    return place


def _make_unique(parent: Path, name: str) -> Path:
    _make_parents(parent)
    base = f"{_file_name(name)}-{time.strftime('%Y%m%d-%H%M%S')}"
    number = 1
    while True:
        place = parent / (base if number == 1 else f"{base}-{number}")
        try:
            place.mkdir()
        except FileExistsError:
            number += 1
        else:
            return place


def _make_parents(parent: Path) -> None:
    in_the_way = next((p for p in (parent, *parent.parents) if p.exists()), parent)
    if not in_the_way.is_dir():
        raise ConfigError(
            f"The run directory can't be made under {parent}: {in_the_way} is a file. "
            "Name a folder instead."
        )
    parent.mkdir(parents=True, exist_ok=True)


def _file_name(name: str) -> str:
    """The name with everything but letters, digits, dots and dashes made a dash."""
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.")[:60] or "run"


def _suggestion(place: Path) -> str:
    """Name the newest run when someone gave the folder that holds the runs."""
    inside = [found.parent for found in place.glob(f"*/{_CONFIG}")]
    if not inside:
        return ""
    newest = max(inside, key=lambda run: (run / _CONFIG).stat().st_mtime)
    return f" Did you mean {newest}?"
