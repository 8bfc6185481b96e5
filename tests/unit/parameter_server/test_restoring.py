"""Reading a model back: onto another cut, from several directories, past damage; or a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from manyhands import optim
from manyhands.errors import CheckpointError
from manyhands.optim.native import rule_spec
from manyhands.parameter_server.shard_map import ParameterSpec, ShardMap
from manyhands.parameter_server.store.chunk_snapshot import read_header
from manyhands.parameter_server.store.folder import Store, segment_names
from manyhands.parameter_server.store.restoring import CHANNELS_LAST, read_flat, read_snapshots
from manyhands.parameter_server.store.segment_file import read_segment
from tests.unit.parameter_server.stored_chunks import (
    PARAMETERS,
    HeldChunks,
    rules_of,
    small_map,
    write_all,
)


def filled(shards: ShardMap, value: float, *, times: int = 1) -> HeldChunks:
    held = HeldChunks(shards)
    for _ in range(times):
        held.fill(value)
    return held


def segments(directory: Path) -> list[Path]:
    return [directory / name for name in segment_names(directory)]


def spoil(path: Path, parameter: str) -> None:
    """Flip a bit in the first record of a parameter."""
    records = read_segment(path).records
    offset = next(r.offset for r in records if r.cut.parameter == parameter)
    data = bytearray(path.read_bytes())
    data[offset + 50] ^= 1
    path.write_bytes(data)


def refusal(directories: Sequence[Path], shards: ShardMap) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_flat(directories, shards, rules_of(shards))
    return str(caught.value)


@pytest.mark.parametrize(("servers", "chunk_bytes"), [(1, 4096), (3, 4096), (5, 512), (1, 1 << 20)])
def test_any_cut_reads_what_another_wrote(tmp_path: Path, servers: int, chunk_bytes: int) -> None:
    held = filled(small_map(), 5.0, times=3)
    write_all(Store(tmp_path), held)
    shards = small_map(servers=servers, chunk_bytes=chunk_bytes)

    model = read_flat([tmp_path], shards, rules_of(shards))
    np.testing.assert_array_equal(model.weights, held.lines[0])
    (momentum,) = model.states
    np.testing.assert_array_equal(momentum, held.lines[1])
    assert model.begun.tolist() == [3] * len(shards.chunks)
    assert model.refused == ()
    assert model.written_at > 0


def test_the_newest_of_several_directories_counts(tmp_path: Path) -> None:
    shards = small_map()
    early, late = filled(shards, 1.0), filled(shards, 2.0, times=2)
    half = range(len(shards.chunks) // 2)
    write_all(Store(tmp_path / "a"), early)
    write_all(Store(tmp_path / "b"), late, half)

    model = read_flat([tmp_path / "a", tmp_path / "b"], shards, rules_of(shards))
    for chunk in shards.chunks:
        place = slice(chunk.start, chunk.start + chunk.floats)
        expected = late if chunk.number in half else early
        np.testing.assert_array_equal(model.weights[place], expected.lines[0][place])


def test_a_later_era_of_another_cut_lies_over_an_earlier_one(tmp_path: Path) -> None:
    early, late = filled(small_map(), 1.0, times=9), filled(small_map(chunk_bytes=2048), 2.0)
    write_all(Store(tmp_path, era=1), early)
    write_all(Store(tmp_path, era=2), late, [0, 2])

    model = read_flat([tmp_path], small_map(), rules_of(small_map()))
    expected = early.lines[0].copy()
    for number in (0, 2):
        chunk = late.shards.chunks[number]
        place = slice(chunk.start, chunk.start + chunk.floats)
        expected[place] = late.lines[0][place]
    np.testing.assert_array_equal(model.weights, expected)
    assert model.begun.min() == 1  # the least of those it is put together from
    assert model.begun.max() == 9


def test_another_memory_order_is_turned_round(tmp_path: Path) -> None:
    held = filled(small_map(), 1.0)
    write_all(Store(tmp_path, order=CHANNELS_LAST), held)

    start, spec = held.shards.starts[1], held.shards.parameters[1]
    stored = held.lines[0][start : start + spec.floats].reshape(8, 5, 5, 3)
    model = read_flat([tmp_path], held.shards, rules_of(held.shards))
    kernel = model.weights[start : start + spec.floats].reshape(spec.shape)
    np.testing.assert_array_equal(kernel, stored.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(model.weights[:start], held.lines[0][:start])
    same = read_flat([tmp_path], held.shards, rules_of(held.shards), order=CHANNELS_LAST)
    np.testing.assert_array_equal(same.weights, held.lines[0])


def test_eras_of_two_memory_orders_can_be_mixed(tmp_path: Path) -> None:
    early, late = filled(small_map(), 1.0), filled(small_map(), 2.0)
    kernel = next(c for c in early.shards.chunks if c.parameter == 1)
    write_all(Store(tmp_path, era=1), early)
    write_all(Store(tmp_path, era=2, order=CHANNELS_LAST), late, [0])  # nothing of the kernel

    model = read_flat([tmp_path], early.shards, rules_of(early.shards))
    place = slice(kernel.start, kernel.start + kernel.floats)
    np.testing.assert_array_equal(model.weights[place], early.lines[0][place])


def test_nothing_stored_is_said(tmp_path: Path) -> None:
    assert "holds no parameters" in refusal([tmp_path], small_map())
    assert "holds no parameters" in refusal([tmp_path / "missing"], small_map())


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    held = filled(small_map(), 1.0)
    bias = next(c.number for c in held.shards.chunks if c.parameter == 2)
    write_all(Store(tmp_path), held, [c.number for c in held.shards.chunks if c.number != bias])

    assert "lacks 41 of the 41 floats of parameter 'bias'" in refusal([tmp_path], held.shards)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    write_all(Store(tmp_path), filled(small_map(), 1.0))
    (path,) = segments(tmp_path)
    spoil(path, "bias")

    message = refusal([tmp_path], small_map())
    assert "lacks 41 of the 41 floats of parameter 'bias'" in message
    assert f"'bias', floats 0 to 40 in {path} is damaged: its checksum is" in message


def test_a_truncated_segment_is_named(tmp_path: Path) -> None:
    write_all(Store(tmp_path), filled(small_map(), 1.0))
    (path,) = segments(tmp_path)
    path.write_bytes(path.read_bytes()[:1000])

    assert f"{path} is damaged: it is cut off." in refusal([tmp_path], small_map())


def test_an_older_record_takes_the_place_of_a_damaged_one(tmp_path: Path) -> None:
    early, late = filled(small_map(), 1.0), filled(small_map(), 2.0, times=2)
    write_all(Store(tmp_path), early)
    (old,) = segments(tmp_path)
    write_all(Store(tmp_path), late)
    (new,) = (path for path in segments(tmp_path) if path != old)
    spoil(new, "bias")

    model = read_flat([tmp_path], small_map(), rules_of(small_map()))
    assert "'bias'" in model.refused[0]
    start = early.shards.starts[2]
    np.testing.assert_array_equal(
        model.weights[start : start + 41], early.lines[0][start : start + 41]
    )
    np.testing.assert_array_equal(model.weights[:start], late.lines[0][:start])


def test_the_records_of_another_model_are_refused(tmp_path: Path) -> None:
    write_all(Store(tmp_path), filled(small_map(), 1.0))
    wider = small_map([ParameterSpec("large", (60, 51)), *PARAMETERS[1:]])
    fewer = small_map(PARAMETERS[:-1])

    assert "'large' has the shape [60, 50], and this model's has [60, 51]" in refusal(
        [tmp_path], wider
    )
    assert "a parameter 'scalar', which this one doesn't have" in refusal([tmp_path], fewer)


def test_the_states_of_another_rule_are_refused(tmp_path: Path) -> None:
    shards = small_map()
    write_all(Store(tmp_path), filled(shards, 1.0))
    adam = rule_spec(optim.Adam(lr=0.1))

    with pytest.raises(CheckpointError, match=r"rule 'sgd' \(1 of them\).*'adam' \(2\)"):
        read_flat([tmp_path], shards, rules_of(shards, adam))


def test_a_server_restores_a_chunk_as_it_was_written(tmp_path: Path) -> None:
    held = filled(small_map(), 1.0, times=4)
    write_all(Store(tmp_path), held)
    chunks = held.shards.chunks[1:3]

    found = read_snapshots(tmp_path, held.shards, chunks, rules_of(held.shards), era=1)
    assert found == {chunk.number: held.collect(chunk.number) for chunk in chunks}


@pytest.mark.parametrize("chunk_bytes", [4096, 2048])
def test_what_an_earlier_era_wrote_is_restored_without_its_leases(
    tmp_path: Path, chunk_bytes: int
) -> None:
    held = HeldChunks(small_map(), lease=7)
    held.fill(1.0)
    write_all(Store(tmp_path, era=1), held)
    shards = small_map(chunk_bytes=chunk_bytes)

    found = read_snapshots(tmp_path, shards, shards.chunks, rules_of(shards), era=2)
    again = HeldChunks(shards)
    for number, snapshot in found.items():
        assert read_header(snapshot).last_lease == 0
        again.restore(number, snapshot, 2)
    np.testing.assert_array_equal(again.lines[0], held.lines[0])
    np.testing.assert_array_equal(again.lines[1], held.lines[1])
    assert again.versions.tolist() == [1] * len(shards.chunks)


def test_a_chunk_that_was_never_stored_can_not_be_restored(tmp_path: Path) -> None:
    held = filled(small_map(), 1.0)
    write_all(Store(tmp_path), held, [0])
    last = held.shards.chunks[-1:]

    with pytest.raises(CheckpointError, match="lacks"):
        read_snapshots(tmp_path, held.shards, last, rules_of(held.shards), era=1)
