"""The chunks of one server as a link needs them: by lane and by form, in arrays for the kernels.

Pure: computed once from the shard map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from manyhands.parameter_server.lane_link import LaneLink
from manyhands.parameter_server.shard_map import Chunk, Form, ShardMap, Span

Integers = npt.NDArray[np.int64]


class Ranges(NamedTuple):
    """Pieces of a flat array, in floats, in the order of the array."""

    starts: Integers
    counts: Integers


class Part:
    """Some chunks of one lane, as the arrays that the kernels take."""

    def __init__(self, lane: LaneLink, chunks: Sequence[Chunk]) -> None:
        self.lane = lane
        self.numbers = np.array([chunk.number for chunk in chunks], np.int64)
        self.ranges = ranges_of(chunks)
        self.size_bytes = 4 * int(self.ranges.counts.sum())


def ranges_of(chunks: Sequence[Chunk]) -> Ranges:
    """Where these chunks lie in a flat array."""
    return Ranges(
        np.array([chunk.start for chunk in chunks], np.int64),
        np.array([chunk.floats for chunk in chunks], np.int64),
    )


def parts_by_lane(
    shards: ShardMap, chunks: Sequence[Chunk], lanes: Sequence[LaneLink]
) -> list[Part]:
    """The chunks by lane; a lane without any has no part."""
    by_lane: dict[int, list[Chunk]] = {}
    for chunk in chunks:
        by_lane.setdefault(shards.lane_of(chunk), []).append(chunk)
    return [Part(lanes[lane], own) for lane, own in sorted(by_lane.items())]


def spans_by_parameter(shards: ShardMap, server: int) -> dict[int, list[Span]]:
    """The server's spans of each parameter that travels as factors."""
    return {
        number: [span for span in shards.spans_of(number) if span.server == server]
        for number, spec in enumerate(shards.parameters)
        if spec.form is Form.FACTORS
    }


def rows_by_parameter(
    shards: ShardMap, chunks: Sequence[Chunk], lanes: Sequence[LaneLink]
) -> dict[int, list[tuple[LaneLink, Chunk]]]:
    """The server's chunks of each parameter that travels as rows, and their lanes."""
    found: dict[int, list[tuple[LaneLink, Chunk]]] = {}
    for chunk in chunks:
        if shards.parameters[chunk.parameter].form is Form.ROWS:
            found.setdefault(chunk.parameter, []).append((lanes[shards.lane_of(chunk)], chunk))
    return found
