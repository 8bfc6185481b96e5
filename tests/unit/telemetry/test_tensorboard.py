"""TensorBoard files, read back with TensorBoard's own reader."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from run_events import cluster, epoch_ended, progress, started

from manyhands.telemetry.events import Note
from manyhands.telemetry.tensorboard import TensorBoardEvents


def read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return {
        tag: [(scalar.step, scalar.value) for scalar in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def test_tensorboard_reads_the_curves_while_the_run_goes_on(tmp_path: Path) -> None:
    sink = TensorBoardEvents(tmp_path / "tensorboard")
    for event in (started(), Note(message="hello"), progress(0, 500), epoch_ended(0)):
        sink.handle(event)
    sink.handle(progress(1, 500, loss=0.125))
    scalars = read_scalars(tmp_path / "tensorboard")
    sink.close()
    assert scalars["train/loss"] == [(500, 0.5), (1500, 0.125)]
    assert scalars["train/samples_per_s"] == [(500, 100.0), (1500, 100.0)]
    assert scalars["train/lr"][0][1] == pytest.approx(0.1)
    assert scalars["epoch/loss"] == [(1000, 0.25)]
    assert scalars["validation/accuracy"] == [(1000, pytest.approx(0.9871))]


def test_a_cluster_has_its_curves_over_the_samples_of_the_run(tmp_path: Path) -> None:
    sink = TensorBoardEvents(tmp_path)
    for event in (started(), cluster(), cluster((8000.0,), seen=1500, held_up=0.25, refused=2)):
        sink.handle(event)
    sink.close()
    scalars = read_scalars(tmp_path)
    assert scalars["replicas/0_samples_per_s"] == [(500, pytest.approx(8120.4)), (1500, 8000.0)]
    assert scalars["replicas/1_samples_per_s"] == [(500, 7950.0)]
    assert scalars["staleness/mean"][0] == (500, pytest.approx(1.21))
    assert scalars["staleness/max"][0] == (500, 5)
    assert scalars["traffic/pushed_bytes_per_s"][0][1] == pytest.approx(71.2e6)
    assert scalars["traffic/pulled_bytes"][0][1] == 136_000_000
    assert [scalars[f"server/{n}_load"][0][1] for n in (0, 1)] == pytest.approx([0.12, 0.09])
    assert scalars["server/held_up"] == [(500, 0.0), (1500, 0.25)]
    assert scalars["server/refused"] == [(500, 0), (1500, 2)]


def test_a_resumed_run_takes_the_place_of_what_was_lost(tmp_path: Path) -> None:
    first = TensorBoardEvents(tmp_path)
    for event in (started(), epoch_ended(0), progress(1, 500), epoch_ended(1), progress(2, 500)):
        first.handle(event)
    first.close()
    second = TensorBoardEvents(tmp_path)
    for event in (started(first_epoch=1), epoch_ended(1, train_loss=0.125)):
        second.handle(event)
    second.close()
    scalars = read_scalars(tmp_path)
    assert scalars["epoch/loss"] == [(1000, 0.25), (2000, 0.125)]
    assert "train/loss" not in scalars or scalars["train/loss"] == []


def test_nothing_is_opened_before_the_first_figure(tmp_path: Path) -> None:
    sink = TensorBoardEvents(tmp_path / "tensorboard")
    sink.handle(started())
    sink.close()
    assert not (tmp_path / "tensorboard").exists()


WRITE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        assert name.partition(".")[0] != "tensorflow", "TensorFlow was asked for"
sys.meta_path.insert(0, Refuse())
import manyhands.telemetry.tensorboard as module
assert "tensorboard" not in sys.modules
from run_events import epoch_ended
sink = module.TensorBoardEvents(sys.argv[1])
sink.handle(epoch_ended(0))
sink.close()
assert "torch.utils.tensorboard" not in sys.modules
"""


def test_tensorboard_is_imported_late_and_tensorflow_never(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", WRITE, str(tmp_path)], check=True, cwd=Path(__file__).parent
    )
