"""A model read back from the durable store, onto any number of servers and any cut into chunks.

The newest record of every float counts, whoever wrote it and however the parameters were cut then.
What is missing, damaged or of another model is refused in a sentence that names the parameter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from manyhands.errors import CheckpointError
from manyhands.optim.native import RuleSpec
from manyhands.parameter_server.shard_map import Chunk, ShardMap
from manyhands.parameter_server.store.catalogue import Found, live, records_of
from manyhands.parameter_server.store.chunk_snapshot import (
    HEADER_BYTES,
    SnapshotHeader,
    pack,
    read_header,
)
from manyhands.parameter_server.store.folder import cut_of, segment_names
from manyhands.parameter_server.store.record_reader import DamagedRecord, Floats, RecordReader
from manyhands.parameter_server.store.segment_file import Cut, Segment, read_segment

Integers = npt.NDArray[np.int64]
CHANNELS_LAST = "channels_last"
_READERS = 4
_LOOKS = 5  # servers may remove what was superseded while it is being read
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class StoredModel:
    """All parameters as flat arrays of a shard map.

    `begun` counts each chunk's updates, by which Adam corrects its bias. `refused` says, a sentence
    each, what was damaged and could be done without.
    """

    weights: Floats
    states: tuple[Floats, ...]
    begun: Integers
    written_at: float  # seconds since 1970, of the newest record
    refused: tuple[str, ...]


def read_flat(
    directories: Sequence[Path], shard_map: ShardMap, rules: Sequence[RuleSpec], *, order: str = ""
) -> StoredModel:
    """The newest state of every parameter, out of all directories together.

    `rules` has one for each parameter; `order` is the memory order that the caller has for
    four-dimensional ones. CheckpointError when a parameter is not there in full, or is of another
    model or another rule.
    """

    def read(found: list[Found], refused: tuple[str, ...]) -> StoredModel:
        _require_same_model(found, shard_map, rules)
        _require_complete(found, shard_map, directories, refused)
        states = max((len(rule.state_starts) for rule in rules), default=0)
        lines = [np.zeros(shard_map.floats, np.float32) for _ in range(1 + states)]
        _paint(found, lines, shard_map, order)
        return StoredModel(
            weights=lines[0],
            states=tuple(lines[1:]),
            begun=_begun(found, shard_map),
            written_at=max((one.segment.written_at for one in found), default=0.0),
            refused=refused,
        )

    return _with_sound_records(directories, read)


def read_snapshots(
    directory: Path,
    shard_map: ShardMap,
    chunks: Sequence[Chunk],
    rules: Sequence[RuleSpec],
    *,
    era: int,
    order: str = "",
) -> dict[int, bytes]:
    """What a server restores these chunks from, by their numbers.

    Leases of an earlier era mean nothing in this one, so they are left out. CheckpointError when a
    parameter is not there in full.
    """

    def read(found: list[Found], refused: tuple[str, ...]) -> dict[int, bytes]:
        by_cut = {one.record.cut: one for one in found if one.segment.order == order}
        same = {chunk.number: by_cut.get(cut_of(chunk, shard_map, rules)) for chunk in chunks}
        with RecordReader([one for one in same.values() if one is not None]) as reader:
            snapshots = {
                number: _of_era(reader.snapshot(one), era, one)
                for number, one in same.items()
                if one is not None
            }
        if len(snapshots) < len(chunks):
            others = [chunk for chunk in chunks if chunk.number not in snapshots]
            model = read_flat([directory], shard_map, rules, order=order)
            snapshots |= {chunk.number: _cut_out(model, chunk) for chunk in others}
        return snapshots

    return _with_sound_records([directory], read)


def _with_sound_records(
    directories: Sequence[Path], read: Callable[[list[Found], tuple[str, ...]], _Read]
) -> _Read:
    """Read, without what turns out to be damaged, until it succeeds or something is missing."""
    damaged: dict[tuple[Path, int], str] = {}
    for _ in range(_LOOKS):
        segments, sentences = _segments(directories)
        while True:
            found = [one for one in records_of(segments) if _key(one) not in damaged]
            try:
                return read(live(found), (*sentences, *damaged.values()))
            except DamagedRecord as error:
                damaged[_key(error.found)] = str(error)
            except FileNotFoundError:
                break
    raise CheckpointError(
        f"The store {_names(directories)} can't be read: its segments go as fast as they are "
        "looked for. Try again when its servers have ended."
    )


def _key(one: Found) -> tuple[Path, int]:
    return one.segment.path, one.record.offset


def _names(directories: Sequence[Path]) -> str:
    return ", ".join(map(str, directories))


def _segments(directories: Sequence[Path]) -> tuple[list[Segment], list[str]]:
    """All segments that can be read, and a sentence about each that can't."""
    segments, refused = [], []
    for directory in directories:
        for name in segment_names(directory):
            try:
                segments.append(read_segment(directory / name))
            except FileNotFoundError:
                continue  # superseded, and removed just now
            except OSError as error:
                refused.append(f"{directory / name} can't be read: {error.strerror or error}.")
            except CheckpointError as error:
                refused.append(str(error))
    return segments, refused


# --- what is refused


def _require_same_model(
    found: Sequence[Found], shard_map: ShardMap, rules: Sequence[RuleSpec]
) -> None:
    specs = {s.name: (s, rule) for s, rule in zip(shard_map.parameters, rules, strict=True)}
    for one in found:
        cut, place = one.record.cut, one.segment.path.parent
        if cut.parameter not in specs:
            raise CheckpointError(
                f"The store {place} is of another model: it holds a parameter '{cut.parameter}', "
                "which this one doesn't have."
            )
        spec, rule = specs[cut.parameter]
        if spec.shape != cut.shape:
            raise CheckpointError(
                f"The store {place} is of another model: its parameter '{cut.parameter}' has the "
                f"shape {list(cut.shape)}, and this model's has {list(spec.shape)}."
            )
        if cut.rule != rule.name or one.record.arrays != 1 + len(rule.state_starts):
            raise CheckpointError(
                f"The store {place} holds the states of the rule {cut.rule!r} "
                f"({one.record.arrays - 1} of them) for '{cut.parameter}', and this run's is "
                f"{rule.name!r} ({len(rule.state_starts)}): resume with the same optimizer."
            )


def _require_complete(
    found: Sequence[Found],
    shard_map: ShardMap,
    directories: Sequence[Path],
    refused: Sequence[str],
) -> None:
    cuts: dict[str, list[Cut]] = defaultdict(list)
    for one in found:
        cuts[one.record.cut.parameter].append(one.record.cut)
    reasons = " ".join(["", *refused])
    if not cuts and shard_map.chunks:
        raise CheckpointError(
            f"The store {_names(directories)} holds no parameters: nothing was written to it yet, "
            f"or this is another folder.{reasons}"
        )
    for spec in shard_map.parameters:
        missing = spec.floats - _covered(cuts[spec.name])
        if missing:
            raise CheckpointError(
                f"The store {_names(directories)} lacks {missing} of the {spec.floats} floats of "
                f"parameter '{spec.name}'.{reasons}"
            )


def _covered(cuts: Sequence[Cut]) -> int:
    """How many floats these cuts of one parameter have together."""
    covered = end = 0
    for first, last in sorted((cut.start, cut.start + cut.floats) for cut in cuts):
        covered += max(0, last - max(first, end))
        end = max(end, last)
    return covered


# --- putting together


def _paint(found: Sequence[Found], lines: Sequence[Floats], shard_map: ShardMap, to: str) -> None:
    """Fill flat arrays with records, later eras over earlier ones."""
    names = [spec.name for spec in shard_map.parameters]
    starts = dict(zip(names, shard_map.starts, strict=True))
    with RecordReader(found) as reader, ThreadPoolExecutor(_READERS) as threads:

        def read(one: Found) -> None:
            cut = one.record.cut
            first = starts[cut.parameter] + cut.start
            own = lines[: one.record.arrays]
            reader.read_into(one, [line[first : first + cut.floats] for line in own])

        order = to
        for (_, stored), group in groupby(found, key=lambda o: (o.segment.era, o.segment.order)):
            _reorder(lines, shard_map, order, stored)
            list(threads.map(read, group))
            order = stored
        _reorder(lines, shard_map, order, to)


def _reorder(lines: Sequence[Floats], shard_map: ShardMap, order: str, to: str) -> None:
    """Turn four-dimensional parameters from one memory order to another."""
    if order == to:
        return
    for spec, start in zip(shard_map.parameters, shard_map.starts, strict=True):
        if len(spec.shape) != 4:
            continue
        outputs, inputs, height, width = spec.shape
        for line in lines:
            part = line[start : start + spec.floats]
            if to == CHANNELS_LAST:
                turned = part.reshape(outputs, inputs, height, width).transpose(0, 2, 3, 1)
            else:
                turned = part.reshape(outputs, height, width, inputs).transpose(0, 3, 1, 2)
            part[:] = turned.ravel()


def _begun(found: Sequence[Found], shard_map: ShardMap) -> Integers:
    """The updates of each chunk: of those that it is put together from, the least.

    Adam then takes smaller steps until its count has caught up; a count that is too high would
    have it take larger ones.
    """
    stored: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for one in found:
        cut = one.record.cut
        stored[cut.parameter].append((cut.start, cut.start + cut.floats, one.record.begun))
    columns = {name: np.array(rows, np.int64).T for name, rows in stored.items()}
    begun = np.zeros(len(shard_map.chunks), np.int64)
    for chunk in shard_map.chunks:
        spec = shard_map.parameters[chunk.parameter]
        firsts, lasts, counts = columns[spec.name]
        first = chunk.first_row * chunk.row_floats
        begun[chunk.number] = counts[(firsts < first + chunk.floats) & (lasts > first)].min()
    return begun


def _of_era(snapshot: bytes, era: int, one: Found) -> bytes:
    if one.segment.era == era:
        return snapshot
    header = replace(read_header(snapshot), last_lease=0)
    return header.packed() + snapshot[HEADER_BYTES:]


def _cut_out(model: StoredModel, chunk: Chunk) -> bytes:
    begun = int(model.begun[chunk.number])
    header = SnapshotHeader(
        version=begun,
        begun=begun,
        last_lease=0,
        arrays=1 + len(model.states),
        floats=chunk.floats,
        clients=0,
    )
    last = chunk.start + chunk.floats
    return pack(header, [line[chunk.start : last] for line in (model.weights, *model.states)])
