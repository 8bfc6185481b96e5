"""A segment: it reads back as it was written, whole or not at all, and damage is seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from manyhands.errors import CheckpointError
from manyhands.parameter_server.store.folder import cut_of
from manyhands.parameter_server.store.segment_file import (
    PARTIAL,
    Segment,
    SegmentWriter,
    read_segment,
    remove_abandoned,
)
from tests.unit.parameter_server.stored_chunks import HeldChunks, rules_of, small_map


def written(folder: Path, name: str = "000001-aa-00000001.segment") -> Segment:
    held = HeldChunks(small_map())
    held.fill(3.0)
    writer = SegmentWriter(folder / name, era=1, order="")
    for chunk in held.shards.chunks:
        snapshot = held.collect(chunk.number)
        assert snapshot is not None
        writer.add(cut_of(chunk, held.shards, rules_of(held.shards)), snapshot)
    return writer.finish()


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    segment = written(tmp_path)

    assert read_segment(segment.path) == segment
    assert len(segment.records) == len(small_map().chunks)
    assert [path.name for path in tmp_path.iterdir()] == [segment.path.name]


def test_nothing_has_a_segments_name_before_it_is_finished(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path / "000001-aa-00000001.segment", era=1, order="")
    assert not list(tmp_path.glob("*.segment"))

    writer.discard()
    assert not list(tmp_path.iterdir())


def test_a_segment_that_was_cut_off_anywhere_is_refused_by_name(tmp_path: Path) -> None:
    path = written(tmp_path).path
    whole = path.read_bytes()
    for size in (0, 5, 8, 100, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=f"{path.name} is damaged"):
            read_segment(path)


def test_a_flipped_bit_in_the_index_is_seen(tmp_path: Path) -> None:
    path = written(tmp_path).path
    data = bytearray(path.read_bytes())
    data[-60] ^= 4
    path.write_bytes(data)

    with pytest.raises(CheckpointError, match="checksum of its index"):
        read_segment(path)


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "000001-aa-00000001.segment"
    path.write_bytes(b"a letter to a friend, of some length, and nothing of a segment in it")

    with pytest.raises(CheckpointError, match="does not begin as a segment"):
        read_segment(path)


def test_a_snapshot_of_another_size_is_not_taken(tmp_path: Path) -> None:
    held = HeldChunks(small_map())
    rules = rules_of(held.shards)
    snapshot = held.collect(0)
    assert snapshot is not None
    writer = SegmentWriter(tmp_path / "000001-aa-00000001.segment", era=1, order="")
    try:
        with pytest.raises(ValueError, match="expected"):
            writer.add(cut_of(held.shards.chunks[-1], held.shards, rules), snapshot)
        with pytest.raises(ValueError, match="expected"):
            writer.add(cut_of(held.shards.chunks[0], held.shards, rules), snapshot[:-4])
    finally:
        writer.discard()


KILLED_WRITER = """
import sys, time
from pathlib import Path
from manyhands.parameter_server.store.segment_file import SegmentWriter
writer = SegmentWriter(Path(sys.argv[1]) / "000001-bb-00000001.segment", era=1, order="")
print("writing", flush=True)
time.sleep(600)
"""


def test_what_a_killed_writer_left_is_removed_and_a_living_ones_is_not(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED_WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"writing\n"
        remove_abandoned(tmp_path)
        kept = list(tmp_path.glob(f"*{PARTIAL}"))
        child.kill()
    assert len(kept) == 1
    remove_abandoned(tmp_path)
    assert not list(tmp_path.iterdir())
