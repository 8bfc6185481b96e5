"""The chunks of a group as links need them: by server and lane and by form, in arrays for kernels.

Pure: computed from the shard map and a table of routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from manyhands.parameter_server.client.routes import RouteTable, Target
from manyhands.parameter_server.shard_map import Chunk, Form, ShardMap, Span

Integers = npt.NDArray[np.int64]
Outcomes = npt.NDArray[np.int8]


class Ranges(NamedTuple):
    """Pieces of a flat array, in floats, in the order of the array."""

    starts: Integers
    counts: Integers


class Part:
    """Some chunks on one lane of one server, under their leases, as the arrays that kernels take.

    `target` is None while nobody serves them.
    """

    def __init__(
        self, target: Target | None, lane: int, chunks: Sequence[Chunk], table: RouteTable
    ) -> None:
        self.target = target
        self.lane = lane
        self.chunks = chunks
        self.table = table
        self.numbers = np.array([chunk.number for chunk in chunks], np.int64)
        self.ranges = ranges_of(chunks)
        self.size_bytes = 4 * int(self.ranges.counts.sum())
        self._routes = {chunk.bucket: table.of(chunk.bucket) for chunk in chunks}
        leases = [route.lease if (route := self._routes[c.bucket]) else 0 for c in chunks]
        self.leases = np.array(leases, np.int64)

    def is_moved(self, table: RouteTable) -> bool:
        """Whether any of the chunks is served elsewhere, or under another lease, by now."""
        return any(table.of(bucket) != route for bucket, route in self._routes.items())

    def remaining(self, outcomes: Outcomes) -> list[Chunk]:
        """The chunks that were not carried out."""
        return [chunk for chunk, done in zip(self.chunks, outcomes, strict=True) if done != 1]


class ChunkSet:
    """Chunks that calls are about, and the parts they fall into. For one thread."""

    def __init__(self, shards: ShardMap, chunks: Sequence[Chunk]) -> None:
        self.chunks = tuple(chunks)
        self._shards = shards
        self._split: tuple[RouteTable, list[Part]] | None = None

    def parts(self, table: RouteTable) -> list[Part]:
        """The parts under a table, the last of which is remembered."""
        if self._split is None or self._split[0] is not table:
            self._split = table, split(self._shards, self.chunks, table)
        return self._split[1]


def split(shards: ShardMap, chunks: Sequence[Chunk], table: RouteTable) -> list[Part]:
    """The chunks by lane and server."""
    found: dict[tuple[int, Target | None], list[Chunk]] = {}
    for chunk in chunks:
        route = table.of(chunk.bucket)
        key = shards.lane_of(chunk), None if route is None else route.target
        found.setdefault(key, []).append(chunk)
    return [
        Part(target, lane, together, table)
        for (lane, target), together in sorted(found.items(), key=lambda item: item[0][0])
    ]


def ranges_of(chunks: Sequence[Chunk]) -> Ranges:
    """Where these chunks lie in a flat array."""
    return Ranges(
        np.array([chunk.start for chunk in chunks], np.int64),
        np.array([chunk.floats for chunk in chunks], np.int64),
    )


def spans_by_parameter(shards: ShardMap, home: int) -> dict[int, list[Span]]:
    """A group's spans of each parameter that travels as factors."""
    return {
        number: [span for span in shards.spans_of(number) if span.server == home]
        for number, spec in enumerate(shards.parameters)
        if spec.form is Form.FACTORS
    }
