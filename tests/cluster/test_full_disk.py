"""A whole run on a disk that fills up: it is told, training goes on, and the disk is used again."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

import manyhands as mh
from tests.cluster.conftest import wait_until
from tests.conftest import blobs
from tests.small_disk import fill_up, small_disk

FULL, FREED, LAST = 2, 5, 7  # epochs


class Disturb(mh.Callback):
    """Fills the disk after one epoch; frees it after a later one, once servers have told of it."""

    def __init__(self, disk: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self._disk = disk
        self._capfd = capfd
        self._epochs = 0
        self._told = ""
        self.written_again = False

    def on_epoch_end(self, view: mh.RunView) -> None:
        self._epochs += 1
        if self._epochs == FULL:
            fill_up(self._disk / "filler")
        elif self._epochs == FREED:
            wait_until(self._is_told, what="the servers tell that the disk is full")
            before = self._newest()
            (self._disk / "filler").unlink()
            wait_until(lambda: self._newest() > before, what="the store is written again")
            self.written_again = True

    def _is_told(self) -> bool:
        self._told += self._capfd.readouterr().err
        return "can't be written back" in self._told and "No space left" in self._told

    def _newest(self) -> int:
        segments = (self._disk / "run" / "store").glob("*.segment")
        return max((path.stat().st_mtime_ns for path in segments), default=0)


def test_a_run_goes_on_while_its_disk_is_full(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk", "8m") as disk:
        disturb = Disturb(disk, capfd)
        trainer = mh.Trainer(
            nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 4)),
            loss=nn.CrossEntropyLoss(),
            optimizer=mh.optim.SGD(lr=0.01),
            strategy=mh.Downpour(replicas=2, servers=2, write_back_s=0.1),
            batch_size=16,
            progress=False,
            run_dir=disk / "run",
            callbacks=[disturb],
        )
        result = trainer.fit(blobs(8192), validation=blobs(seed=1), epochs=LAST)

        assert len(result.history) == LAST
        assert result.metrics["accuracy"] > 0.9
        assert disturb.written_again
