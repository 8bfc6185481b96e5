"""What several test folders share: tiny problems that train in a moment."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

# One thread to a process, here and in the programs that tests start: files are tested beside each
# other, and threads of products this small do little but wait for one another, each at full speed.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import numpy as np
import pytest
import torch
from torch import nn

import manyhands as mh

# A busy machine may take any time over an example, and what fails today fails tomorrow as well.
# `--hypothesis-profile=explore` looks for examples that nobody has seen.
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("repeatable")

# Tests press Ctrl-C in processes of their own; a shell that started us in the background has made
# every child deaf to it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def _seed_everything() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def pytest_collectstart() -> None:
    """Before a test file is read, for the nets and batches that it makes there."""
    _seed_everything()


@pytest.fixture(autouse=True)
def same_numbers_every_time():
    """A test draws the same numbers whichever tests ran before it in its process."""
    _seed_everything()


def blobs(samples: int = 512, classes: int = 4, features: int = 20, seed: int = 0):
    """Points around class centres: easy to learn, so that learning can be asserted."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, features, generator=torch.Generator().manual_seed(99)) * 2
    labels = torch.randint(classes, (samples,), generator=generator)
    points = centres[labels] + torch.randn(samples, features, generator=generator)
    return points, labels


def small_net(features: int = 20, classes: int = 4, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, classes))


@pytest.fixture
def make_trainer(tmp_path: Path):
    """A Trainer for the blobs, quiet, in a directory of its own."""

    def make(model: nn.Module | None = None, **arguments) -> mh.Trainer:
        settings = {
            "loss": nn.CrossEntropyLoss(),
            "optimizer": mh.optim.SGD(lr=0.05, momentum=0.9),
            "strategy": mh.Synchronous(),
            "batch_size": 32,
            "progress": False,
            "run_dir": tmp_path / "run",
        } | arguments
        return mh.Trainer(small_net() if model is None else model, **settings)

    return make
