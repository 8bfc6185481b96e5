"""Memory of every process of a run stays where it was once it is warm."""

from __future__ import annotations

import os

import psutil
import pytest
from torch import nn

import manyhands as mh
from tests.cluster.conftest import workers_of
from tests.conftest import blobs

MB = 1 << 20
WARM, LATE, EPOCHS = 4, 21, 24
NOISE_BYTES = 12 * MB  # what allocators and write-back hold for a while


class MemoryOfRoles(mh.Callback):
    """What every role has for itself at the ends of two epochs, in bytes by process id."""

    def __init__(self) -> None:
        self.at: dict[int, dict[int, int]] = {}

    def on_epoch_end(self, run: mh.RunView) -> None:
        if run.epoch in (WARM, LATE):
            self.at[run.epoch] = {role.pid: _own_bytes(role) for role in workers_of(os.getpid())}


def _own_bytes(process: psutil.Process) -> int:
    return process.memory_full_info().uss


@pytest.mark.parametrize("push", ["weights", "gradients"])
def test_a_long_run_needs_no_more_memory_than_a_short_one(make_trainer, push):
    points, labels = blobs(samples=1280, features=400)
    wide = nn.Sequential(nn.Linear(400, 256), nn.ReLU(), nn.Linear(256, 4))
    memory = MemoryOfRoles()
    trainer = make_trainer(
        wide,
        strategy=mh.Downpour(replicas=2, servers=2, push=push, push_every=1),
        callbacks=[memory],
    )
    trainer.fit((points, labels), epochs=EPOCHS)

    # A net of 0.4 MB, pushed some 40 times an epoch, to two servers that each keep a copy.
    grown = {pid: memory.at[LATE][pid] - before for pid, before in memory.at[WARM].items()}
    assert len(grown) >= 5  # replicas, servers, controller
    assert max(grown.values()) < NOISE_BYTES, grown
