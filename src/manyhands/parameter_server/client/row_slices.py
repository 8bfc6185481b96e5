"""Rows of sparse gradients, sorted by the chunks that they lie in, as one call sends them.

Pure. However many chunks and parameters a push touches, its rows lie in one array and their values
in another, and each chunk is a range of both: the native link then sends them in one pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from manyhands.parameter_server.shard_map import Chunk, ShardMap

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowSlices:
    """Rows of many chunks. `counts`, `row_starts` and `value_starts` are by a chunk's number."""

    rows: Integers  # numbered within their chunks
    values: Floats  # one row behind another
    counts: Integers
    row_starts: Integers
    value_starts: Integers


class RowCutter:
    """Cuts sparse gradients along the chunks of a group; rows of other groups are left out."""

    def __init__(self, shards: ShardMap, chunks: Iterable[Chunk]) -> None:
        found: dict[int, list[Chunk]] = {}
        for chunk in chunks:
            found.setdefault(chunk.parameter, []).append(chunk)
        self._bounds = {number: _Bounds(own) for number, own in found.items()}
        self._chunks = len(shards.chunks)

    def cut(self, updates: Mapping[int, tuple[Integers, Floats]]) -> RowSlices:
        """Of each parameter the numbers of rows, each once, and their gradients."""
        counts, row_starts, value_starts = np.zeros((3, self._chunks), np.int64)
        rows: list[Integers] = []
        values: list[Floats] = []
        row_count = value_count = 0
        for parameter, (numbers, gradients) in updates.items():
            bounds = self._bounds.get(parameter)
            if bounds is None:
                continue
            numbers, gradients = _ascending(numbers, gradients.reshape(-1, bounds.width))
            lows = np.searchsorted(numbers, bounds.firsts)
            each = np.searchsorted(numbers, bounds.ends) - lows
            before = np.cumsum(each) - each
            counts[bounds.chunks] = each
            row_starts[bounds.chunks] = row_count + before
            value_starts[bounds.chunks] = value_count + before * bounds.width
            picked = np.repeat(lows - before, each) + np.arange(each.sum())
            rows.append(numbers[picked] - np.repeat(bounds.firsts, each))
            values.append(gradients[picked].reshape(-1))
            row_count += len(rows[-1])
            value_count += len(values[-1])
        return RowSlices(
            np.concatenate(rows) if rows else np.zeros(0, np.int64),
            np.concatenate(values) if values else np.zeros(0, np.float32),
            counts,
            row_starts,
            value_starts,
        )


class _Bounds:
    """The chunks of one parameter, in the order of their rows."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        own = sorted(chunks, key=lambda chunk: chunk.first_row)
        self.chunks = np.array([chunk.number for chunk in own], np.int64)
        self.firsts = np.array([chunk.first_row for chunk in own], np.int64)
        self.ends = self.firsts + np.array([chunk.rows for chunk in own], np.int64)
        self.width = own[0].row_floats


def _ascending(numbers: Integers, values: Floats) -> tuple[Integers, Floats]:
    if np.all(numbers[1:] >= numbers[:-1]):
        return numbers, values
    order = np.argsort(numbers, kind="stable")
    return numbers[order], values[order]
