"""Write-back: what moved is written once, in time; a disk in trouble costs a warning, no more."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from manyhands.errors import CheckpointError, ConfigError
from manyhands.parameter_server.persistence import Persistence, WriteBack
from manyhands.parameter_server.shard_map import ParameterSpec
from manyhands.parameter_server.store.folder import segment_names
from manyhands.parameter_server.store.restoring import read_flat
from tests.small_disk import fill_up, small_disk
from tests.unit.parameter_server.stored_chunks import HeldChunks, rules_of, small_map

SOON_S = 0.05


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = 60.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        time.sleep(0.01)


def persistence(held: HeldChunks, directory: Path, **settings: float) -> Persistence:
    return Persistence(
        held,
        held.shards,
        rules_of(held.shards),
        WriteBack(directory=directory, **({"every_s": SOON_S} | settings)),
        served=lambda: range(len(held.shards.chunks)),
    )


def stored(held: HeldChunks, directory: Path) -> np.ndarray:
    return read_flat([directory], held.shards, rules_of(held.shards)).weights


def is_stored(held: HeldChunks, directory: Path) -> bool:
    try:
        return bool(np.array_equal(stored(held, directory), held.lines[0]))
    except CheckpointError:
        return False


def test_what_moves_is_on_the_disk_soon(tmp_path: Path) -> None:
    held = HeldChunks(small_map())
    with persistence(held, tmp_path / "store"):
        for value in (1.0, 2.0):
            held.fill(value)
            wait_until(lambda: is_stored(held, tmp_path / "store"), f"{value} stored")


def test_many_updates_are_folded_into_one_write(tmp_path: Path) -> None:
    held = HeldChunks(small_map())
    chunks = len(held.shards.chunks)
    writing = persistence(held, tmp_path / "store")
    for _ in range(100):
        held.fill(1.0)
    writing.write_back()
    writing.write_back()  # nothing has moved

    assert writing.report.records == chunks == held.collected
    assert writing.report.updates == 100 * chunks
    assert writing.report.rounds == 2
    assert writing.report.written_bytes < 2 * sum(line.nbytes for line in held.lines)


def test_only_what_moved_is_written_again(tmp_path: Path) -> None:
    held = HeldChunks(small_map())
    writing = persistence(held, tmp_path / "store")
    held.fill(1.0)
    writing.write_back()
    before = writing.report.records
    held.fill(2.0, [1])
    writing.write_back()

    assert writing.report.records == before + 1
    assert is_stored(held, tmp_path / "store")


def test_leaving_writes_what_came_last(tmp_path: Path) -> None:
    held = HeldChunks(small_map())
    with persistence(held, tmp_path / "store", every_s=600.0) as writing:
        held.fill(1.0)
        wait_until(lambda: writing.report.records > 0, "the first round")
        held.fill(2.0)

    assert is_stored(held, tmp_path / "store")


def test_what_a_killed_server_left_unfinished_is_removed(tmp_path: Path) -> None:
    held = HeldChunks(small_map())
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "000001-aa-00000001.partial").write_bytes(b"not whole")
    held.fill(1.0)
    persistence(held, tmp_path / "store").write_back()

    assert [path.suffix for path in (tmp_path / "store").iterdir()] == [".segment"]


def test_a_chunk_that_another_server_serves_is_not_written(tmp_path: Path) -> None:
    held = HeldChunks(small_map())
    held.fill(1.0)
    writing = Persistence(
        held,
        held.shards,
        rules_of(held.shards),
        WriteBack(directory=tmp_path / "store"),
        served=lambda: [0, 2],
    )
    writing.write_back()

    assert writing.report.records == 2


def test_a_chunk_at_a_lower_position_than_the_stored_one_is_left_alone(tmp_path: Path) -> None:
    held = HeldChunks(small_map(), lease=2)
    held.fill(1.0)
    persistence(held, tmp_path / "store").write_back()
    behind = HeldChunks(small_map(), lease=1)
    for _ in range(5):
        behind.fill(7.0)
    writing = persistence(behind, tmp_path / "store")
    writing.write_back()

    assert writing.report.records == 0
    assert is_stored(held, tmp_path / "store")


def test_the_bandwidth_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldChunks(small_map([ParameterSpec("large", (512, 512))], chunk_bytes=1 << 16))
    writing = persistence(held, tmp_path / "store", most_mb_s=4.0)
    pauses: list[float] = []
    monkeypatch.setattr(writing._closing, "wait", pauses.append)
    held.fill(1.0)
    writing.write_back()

    # Nobody waited, so the pauses that were asked for are those of the last record at least.
    assert max(pauses) > 0.25  # 2 MB at 4 MB/s, with a machine that is slow
    assert is_stored(held, tmp_path / "store")


def test_a_chunk_is_restored_from_the_store(tmp_path: Path) -> None:
    held = HeldChunks(small_map())
    held.fill(1.0)
    persistence(held, tmp_path / "store").write_back()
    empty = HeldChunks(small_map())
    persistence(empty, tmp_path / "store").restore(range(len(held.shards.chunks)), lease=3)

    np.testing.assert_array_equal(empty.lines[0], held.lines[0])
    np.testing.assert_array_equal(empty.lines[1], held.lines[1])
    assert set(empty.restored.values()) == {3}


@pytest.mark.parametrize("name", ["every_s", "most_mb_s"])
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        WriteBack(directory=tmp_path, **{name: 0})


# --- a disk in trouble


def warnings(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


def test_a_full_disk_is_told_once_and_used_again_when_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held = HeldChunks(small_map())
    with (
        small_disk(tmp_path / "disk", "512k") as disk,
        persistence(held, disk / "store") as writing,
    ):
        held.fill(1.0)
        wait_until(lambda: is_stored(held, disk / "store"), "stored while there is room")
        fill_up(disk / "filler")
        held.fill(2.0)
        wait_until(lambda: "No space left" in writing.report.trouble, "trouble is reported")
        rounds = held.collected
        wait_until(lambda: held.collected > rounds + 3, "it is tried again")
        assert not list((disk / "store").glob("*.partial"))
        assert stored(held, disk / "store")[0] == 1.0, "the record before is intact"

        (disk / "filler").unlink()
        wait_until(lambda: is_stored(held, disk / "store"), "stored when there is room again")
        wait_until(lambda: writing.report.trouble == "", "trouble is over")
    assert warnings(caplog, "No space left") == 1
    assert warnings(caplog, "again.") == 1


def test_a_read_only_disk_is_told_once_and_used_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held = HeldChunks(small_map())
    with small_disk(tmp_path / "disk", "4m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with persistence(held, disk / "store") as writing:
            held.fill(1.0)
            wait_until(lambda: "Read-only" in writing.report.trouble, "trouble is reported")
            subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
            wait_until(lambda: is_stored(held, disk / "store"), "stored when it can be")
    assert warnings(caplog, "Read-only") == 1


def test_a_directory_that_vanishes_is_made_again_and_filled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held = HeldChunks(small_map())
    with persistence(held, tmp_path / "run" / "store") as writing:
        held.fill(1.0)
        wait_until(lambda: "No such file" in writing.report.trouble, "no parent to be made in")
        (tmp_path / "run").mkdir()
        wait_until(lambda: is_stored(held, tmp_path / "run" / "store"), "stored")
        shutil.rmtree(tmp_path / "run" / "store")
        wait_until(lambda: is_stored(held, tmp_path / "run" / "store"), "stored again")
    assert warnings(caplog, "vanished") == 1
    assert warnings(caplog, "No such file") == 1
    assert segment_names(tmp_path / "run" / "store")


def test_a_disk_that_is_too_slow_for_the_interval_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held = HeldChunks(small_map())
    writing = persistence(held, tmp_path / "store", every_s=1e-6)
    for value in (1.0, 2.0):
        held.fill(value)
        writing.write_back()

    assert warnings(caplog, "it was to be done every 1e-06 s") == 1


def test_a_file_in_place_of_the_directory_is_trouble_and_no_more(tmp_path: Path) -> None:
    held = HeldChunks(small_map())
    (tmp_path / "store").write_text("a letter")
    held.fill(1.0)
    writing = persistence(held, tmp_path / "store")
    writing.write_back()

    assert "can't be written back" in writing.report.trouble
    assert (tmp_path / "store").read_text() == "a letter"
