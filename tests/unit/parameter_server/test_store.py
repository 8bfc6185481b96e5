"""The store: several writers in one directory, never a step back, little on the disk, few waits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from manyhands.parameter_server.shard_map import ParameterSpec
from manyhands.parameter_server.store import folder as store_module
from manyhands.parameter_server.store.folder import Store, cut_of, discard, next_era, segment_names
from tests.unit.parameter_server.stored_chunks import HeldChunks, rules_of, small_map, write_all


def size_on_disk(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def position(store: Store, held: HeldChunks, number: int) -> tuple[int, int, int]:
    chunk = held.shards.chunks[number]
    return store.position(cut_of(chunk, held.shards, rules_of(held.shards)))


def test_rewriting_for_long_takes_no_more_room_than_one_copy(tmp_path: Path) -> None:
    held, store = HeldChunks(small_map()), Store(tmp_path / "store")
    for _ in range(50):
        held.fill(1.0)
        write_all(store, held)
        store.tidy()

    assert len(segment_names(store.directory)) == 1
    payload = sum(line.nbytes for line in held.lines)
    assert size_on_disk(store.directory) < 2 * payload


def test_parts_that_stopped_moving_do_not_keep_whole_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round leaves one more chunk behind, the only one that still counts in its segment."""
    monkeypatch.setattr(store_module, "SEGMENT_BYTES", 1 << 10)
    held, store = HeldChunks(small_map(chunk_bytes=512)), Store(tmp_path / "store")
    cuts = [cut_of(chunk, held.shards, rules_of(held.shards)) for chunk in held.shards.chunks]
    held.fill(0.0)
    for moving in range(len(cuts)):
        held.fill(1.0, range(moving, len(cuts)))
        write_all(store, held, range(moving, len(cuts)))
        scattered = store.tidy()
        if scattered:
            write_all(store, held, [n for n, cut in enumerate(cuts) if cut in scattered])
            store.tidy()

    payload = sum(line.nbytes for line in held.lines)
    assert len(cuts) > 15
    assert size_on_disk(store.directory) < 3 * payload


def test_a_lower_lease_or_version_never_counts_over_a_higher(tmp_path: Path) -> None:
    held, old = HeldChunks(small_map(), lease=1), HeldChunks(small_map(), lease=1)
    new_primary, old_primary = Store(tmp_path / "store"), Store(tmp_path / "store")
    for _ in range(5):
        old.fill(1.0)
    held.fill(2.0)
    held.leases[:] = 2  # of a new primary, with fewer updates
    write_all(new_primary, held)
    write_all(old_primary, old)  # woke up late
    old_primary.tidy()

    fresh = Store(tmp_path / "store")
    fresh.refresh()
    assert position(fresh, held, 0) == (1, 2, 1)
    chunk = held.shards.chunks[0]
    assert not fresh.is_newer(cut_of(chunk, held.shards, rules_of(held.shards)), 1, 99)
    assert fresh.is_newer(cut_of(chunk, held.shards, rules_of(held.shards)), 2, 2)


def test_whoever_tidies_up_the_newest_of_several_writers_stays(tmp_path: Path) -> None:
    held = HeldChunks(small_map())
    writers = [Store(tmp_path / "store") for _ in range(3)]
    for round_number in range(30):
        held.fill(1.0)
        writers[round_number % 3].refresh()
        write_all(writers[round_number % 3], held)
        writers[(round_number + 1) % 3].tidy()  # which has not looked lately
        writers[round_number % 3].tidy()

    fresh = Store(tmp_path / "store")
    fresh.refresh()
    assert {position(fresh, held, chunk.number) for chunk in held.shards.chunks} == {(1, 1, 30)}
    assert len(segment_names(tmp_path / "store")) <= 3


def test_thousands_of_small_parameters_wait_for_the_disk_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = small_map([ParameterSpec(f"p{number}", (3,)) for number in range(2000)])
    held, store = HeldChunks(shards), Store(tmp_path / "store")
    forced: list[int] = []
    monkeypatch.setattr(os, "fsync", forced.append)
    held.fill(1.0)
    write_all(store, held)

    assert len(forced) == 2  # the segment and its name


def test_a_directory_that_vanished_is_noticed_and_made_again(tmp_path: Path) -> None:
    held, store = HeldChunks(small_map()), Store(tmp_path / "store")
    assert store.refresh()
    held.fill(1.0)
    write_all(store, held)
    assert store.refresh()
    discard([store.directory])
    store.directory.rmdir()

    assert not store.refresh()
    assert position(store, held, 0) == (0, 0, 0)
    assert store.refresh()


def test_a_damaged_segment_is_told_once_and_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held, store = HeldChunks(small_map()), Store(tmp_path / "store")
    held.fill(1.0)
    write_all(store, held)
    (name,) = segment_names(store.directory)
    data = (store.directory / name).read_bytes()
    (store.directory / name).write_bytes(data[:-9])

    fresh = Store(store.directory)
    fresh.refresh()
    fresh.refresh()
    assert position(fresh, held, 0) == (0, 0, 0)
    assert [name in line.message for line in caplog.records] == [True]
    assert segment_names(store.directory) == [name]


def test_an_era_counts_the_runs_that_went_on_in_a_store(tmp_path: Path) -> None:
    held = HeldChunks(small_map())
    held.fill(1.0)
    assert next_era([tmp_path / "store"]) == 1
    write_all(Store(tmp_path / "store", era=1), held)
    write_all(Store(tmp_path / "other", era=4), held)

    (tmp_path / "store" / "a letter.segment").write_text("of somebody else")
    assert next_era([tmp_path / "store"]) == 2
    assert next_era([tmp_path / "store", tmp_path / "other"]) == 5
    discard([tmp_path / "store", tmp_path / "other"])
    assert next_era([tmp_path / "store", tmp_path / "other"]) == 1
    assert not list((tmp_path / "store").iterdir())


def test_a_later_era_counts_although_its_versions_begin_anew(tmp_path: Path) -> None:
    held, again = HeldChunks(small_map(), lease=9), HeldChunks(small_map())
    for _ in range(5):
        held.fill(1.0)
    write_all(Store(tmp_path / "store", era=1), held)
    again.fill(2.0)
    later = Store(tmp_path / "store", era=2)
    write_all(later, again)
    later.tidy()

    assert position(later, again, 0) == (2, 1, 1)
    assert [name[:6] for name in segment_names(later.directory)] == ["000002"]


def test_the_records_of_an_earlier_era_stay_until_all_of_a_parameter_is_written(
    tmp_path: Path,
) -> None:
    held = HeldChunks(small_map())
    held.fill(1.0)
    write_all(Store(tmp_path / "store", era=1), held)
    other_cut = HeldChunks(small_map(chunk_bytes=2048))
    other_cut.fill(2.0)
    later = Store(tmp_path / "store", era=2)
    write_all(later, other_cut, [0])
    later.tidy()
    assert [name[:6] for name in segment_names(later.directory)] == ["000001", "000002"]

    write_all(later, other_cut)
    later.tidy()
    assert [name[:6] for name in segment_names(later.directory)] == ["000002"]
