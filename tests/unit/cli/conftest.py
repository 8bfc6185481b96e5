"""The command line as a person uses it: in a process of its own, in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from manyhands.cli.main import app

PROGRAM = [sys.executable, "-c", "from manyhands.cli.main import main; main()"]
TIMEOUT_S = 100

TINY_RECIPE = '''"""Two clouds of points."""
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import nn

import manyhands as mh
from manyhands.recipes import Recipe


@dataclass
class Settings:
    lr: Annotated[float, "learning rate"] = 0.1
    hidden: tuple[int, ...] = (8,)
    clip: float | None = None
    validate: bool = True
    seed: int = 0


class Net(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, hidden[0]), nn.ReLU(), nn.Linear(hidden[0], 2))

    def forward(self, x):
        return self.body(x)


def clouds(count, seed):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (count,), generator=generator)
    x = torch.randn(count, 4, generator=generator) + 3 * y[:, None]
    return mh.data.arrays(x.numpy(), y.numpy())


def build(settings):
    return Recipe(
        model=Net(settings.hidden),
        loss=nn.CrossEntropyLoss(),
        optimizer=mh.optim.SGD(lr=settings.lr, clip_norm=settings.clip),
        train=clouds(256, 1),
        validation=clouds(128, 2) if settings.validate else None,
        epochs=2,
        batch_size=16,
        seed=settings.seed,
    )
'''

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder that holds one small recipe, tiny.py."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(TINY_RECIPE)
    return tmp_path


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a command in this process: quicker, for what needs no process of its own."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def command(folder: Path) -> Command:
    """Run `manyhands ...` to its end."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, *map(str, arguments)],
            cwd=folder,
            env=dict(os.environ, COLUMNS="100", NO_COLOR="1"),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )

    return run
