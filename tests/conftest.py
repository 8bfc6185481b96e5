"""What several test folders share: tiny problems that train in a moment."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from torch import nn

import manyhands as mh

# Tests press Ctrl-C in processes of their own; a shell that started us in the background has made
# every child deaf to it.
signal.signal(signal.SIGINT, signal.default_int_handler)


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
