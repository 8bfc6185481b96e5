"""A flat array of weights that is fetched into again and again, and what is known of it.

The servers note which rows changed at which version of a chunk, so that a client that says what it
has is sent the rest alone. What it has is said here, for each chunk, by a version and an *era* (see
docs/protocol.md, Rows that changed); whoever fetches into another array has nothing yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from manyhands.parameter_server.shard_map import Chunk, Form, ShardMap

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


class RowRange(NamedTuple):
    """Neighbouring rows of one parameter."""

    parameter: int
    first: int
    rows: int


class HeldWeights:
    """The array and what it holds. Each group of chunks is for one thread, as a `ServerLink` is.

    The owner may change rows of the array between fetches, but one that no update of any client
    changes on the servers stays as he left it: he pushes what he does.
    """

    def __init__(self, shards: ShardMap, weights: Floats) -> None:
        if len(weights) != shards.floats:
            raise ValueError(f"an array of {len(weights)} floats; the map has {shards.floats}")
        self.weights = weights
        # By a chunk's number: what was fetched last. Era 0: nothing.
        self.versions = np.zeros(len(shards.chunks), np.int64)
        self.eras = np.zeros(len(shards.chunks), np.int64)
        specs = shards.parameters
        by_rows = [number for number, spec in enumerate(specs) if spec.form is Form.ROWS]
        ends = np.cumsum([0] + [specs[number].rows for number in by_rows])
        self._starts = dict(zip(by_rows, ends[:-1].tolist(), strict=True))
        self.changed = np.zeros(int(ends[-1]), np.uint8)  # 1: fetched and not yet told
        self.row_starts = np.array(
            [self._starts.get(c.parameter, 0) + c.first_row for c in shards.chunks], np.int64
        )

    def take_changed(self, ranges: Sequence[RowRange]) -> dict[int, Integers]:
        """The rows within these that came since they were last asked for, by parameter."""
        found: dict[int, list[Integers]] = {}
        for within in ranges:
            start = self._starts[within.parameter] + within.first
            flags = self.changed[start : start + within.rows]
            rows = np.flatnonzero(flags)
            if len(rows):
                flags[rows] = 0
                found.setdefault(within.parameter, []).append(rows + within.first)
        return {parameter: np.concatenate(rows) for parameter, rows in found.items()}


def row_ranges(chunks: Sequence[Chunk]) -> list[RowRange]:
    """The rows of these chunks, neighbours together."""
    ranges: list[RowRange] = []
    for chunk in sorted(chunks, key=lambda chunk: chunk.number):
        last = ranges[-1] if ranges else None
        if last and (last.parameter, last.first + last.rows) == (chunk.parameter, chunk.first_row):
            ranges[-1] = last._replace(rows=last.rows + chunk.rows)
        else:
            ranges.append(RowRange(chunk.parameter, chunk.first_row, chunk.rows))
    return ranges
