"""Where every weight lives: parameters cut into chunks, hashed into buckets, spread over servers.

Adam, section 3.3.1. A chunk is at most 1 MB of one parameter, whole rows of a matrix; it is the
unit of update and version, and belongs to one lane (thread) of one server. A bucket is a set of
chunks and the unit of placement. Everything here is a pure function of the parameters' shapes, so
that every process that is given the same shapes computes the same map.

    parameters   |-- fc.weight ----------------|- fc.bias -|     laid out one after another in
    flat         |c0     |c1     |c2     |c3   |..|c4      |     one array of floats, "flat"
    buckets        17      3       17      40       3            hash of name and first row
    servers        0       1       0       1        1            by bytes, greatest first
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from manyhands.errors import ConfigError

CHUNK_BYTES = 1 << 20
_FLOAT_BYTES = 4
_ALIGNMENT = 16  # floats: a cache line, and the widest vector register
_SMALLEST_CHUNK_BYTES = 64 << 10  # below this a frame costs as much as its floats
_CHUNKS_PER_LANE = 4  # wanted at least, so that lanes can be loaded evenly
_SPANS = 2  # lanes at most that share a parameter of factors: `a` travels to each


class Form(str, Enum):
    """The form in which a parameter's updates travel; `forms.choose_form` picks one."""

    DELTA = "delta"
    FACTORS = "factors"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """A named tensor of the model and the form of its updates."""

    name: str
    shape: tuple[int, ...]
    form: Form = Form.DELTA

    def __post_init__(self) -> None:
        least = {Form.DELTA: 0, Form.ROWS: 1, Form.FACTORS: 2}[self.form]
        if len(self.shape) < least:
            raise ConfigError(
                f"Parameter '{self.name}' has shape {self.shape} and its updates can't travel as "
                f"{self.form.value}, which needs at least {least} dimensions: use the form delta."
            )

    @property
    def rows(self) -> int:
        """Rows that chunks are cut between; a vector's are single floats."""
        return self.shape[0] if self.shape else 1

    @property
    def row_floats(self) -> int:
        return math.prod(self.shape[1:])

    @property
    def floats(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole rows of one parameter: the unit of update, version and replication."""

    number: int  # of all chunks of the map
    parameter: int
    first_row: int
    rows: int
    row_floats: int
    start: int  # of its first float in the flat array
    bucket: int

    @property
    def floats(self) -> int:
        return self.rows * self.row_floats


@dataclass(frozen=True, slots=True)
class Span:
    """The contiguous chunks of one parameter on one lane: what one frame of factors addresses."""

    parameter: int
    server: int
    lane: int
    chunks: tuple[Chunk, ...]

    @property
    def first_row(self) -> int:
        return self.chunks[0].first_row

    @property
    def rows(self) -> int:
        return sum(chunk.rows for chunk in self.chunks)


@dataclass(frozen=True)
class ShardMap:
    """Which server and which lane holds each chunk. Immutable, so safe to share by threads."""

    version: int
    parameters: tuple[ParameterSpec, ...]
    chunks: tuple[Chunk, ...]  # in the order of their numbers, which is that of the flat array
    bucket_servers: tuple[int, ...]
    chunk_lanes: tuple[int, ...]
    servers: int
    lanes: int

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where each parameter begins in the flat array, in floats."""
        return _starts(self.parameters)[:-1]

    @cached_property
    def floats(self) -> int:
        """The length of the flat array."""
        return _starts(self.parameters)[-1]

    def server_of(self, chunk: Chunk) -> int:
        return self.bucket_servers[chunk.bucket]

    def lane_of(self, chunk: Chunk) -> int:
        return self.chunk_lanes[chunk.number]

    def chunks_of(self, server: int) -> tuple[Chunk, ...]:
        """The chunks of a server, in the order of the flat array."""
        return tuple(chunk for chunk in self.chunks if self.server_of(chunk) == server)

    def spans_of(self, parameter: int) -> tuple[Span, ...]:
        """A parameter's chunks, grouped into runs on the same lane of the same server."""
        spans: list[Span] = []
        for chunk in self.chunks:
            if chunk.parameter != parameter:
                continue
            home = (self.server_of(chunk), self.lane_of(chunk))
            if spans and (spans[-1].server, spans[-1].lane) == home:
                spans[-1] = Span(parameter, *home, (*spans[-1].chunks, chunk))
            else:
                spans.append(Span(parameter, *home, (chunk,)))
        return tuple(spans)


def make_shard_map(
    parameters: Sequence[ParameterSpec],
    *,
    servers: int,
    lanes: int,
    chunk_bytes: int = CHUNK_BYTES,
    version: int = 1,
) -> ShardMap:
    """Cut the parameters into chunks and place them, the same way for the same arguments."""
    for name, count in (("servers", servers), ("lanes", lanes), ("chunk_bytes", chunk_bytes)):
        if count < 1:
            raise ConfigError(f"{name} is {count!r}; expected a number >= 1.")
    specs = tuple(parameters)
    chunks = cut(specs, _good_chunk_bytes(specs, servers * lanes, chunk_bytes))
    bucket_servers = place(chunks, servers=servers)
    return ShardMap(
        version=version,
        parameters=specs,
        chunks=chunks,
        bucket_servers=bucket_servers,
        chunk_lanes=_lanes_of(specs, chunks, bucket_servers, servers, lanes),
        servers=servers,
        lanes=lanes,
    )


def cut(parameters: Sequence[ParameterSpec], chunk_bytes: int) -> tuple[Chunk, ...]:
    """The chunks of all parameters: even, of whole rows, at most `chunk_bytes` where a row is."""
    starts = _starts(parameters)
    pieces = [
        (number, first_row, rows, row_floats)
        for number, spec in enumerate(parameters)
        for first_row, rows, row_floats in _pieces(spec, chunk_bytes)
    ]
    buckets = _bucket_count(len(pieces))
    return tuple(
        Chunk(
            number=number,
            parameter=parameter,
            first_row=first_row,
            rows=rows,
            row_floats=row_floats,
            start=starts[parameter] + first_row * row_floats,
            bucket=_bucket(parameters[parameter], first_row, buckets),
        )
        for number, (parameter, first_row, rows, row_floats) in enumerate(pieces)
    )


def place(chunks: Sequence[Chunk], *, servers: int) -> tuple[int, ...]:
    """The server of each bucket: the greatest first, each to the server that holds least so far.

    No server then holds more than the mean and one bucket.
    """
    loads = [0] * _bucket_count(len(chunks))
    for chunk in chunks:
        loads[chunk.bucket] += chunk.floats
    return tuple(_spread(loads, servers))


def _starts(parameters: Sequence[ParameterSpec]) -> tuple[int, ...]:
    starts = [0]
    for spec in parameters:
        starts.append(starts[-1] + -(-spec.floats // _ALIGNMENT) * _ALIGNMENT)
    return tuple(starts)


def _good_chunk_bytes(specs: Sequence[ParameterSpec], lanes: int, chunk_bytes: int) -> int:
    """Smaller chunks for a small model, so that every lane of every server has its share."""
    if lanes == 1:
        return chunk_bytes
    even = sum(spec.floats for spec in specs) * _FLOAT_BYTES // (lanes * _CHUNKS_PER_LANE)
    return min(chunk_bytes, max(even, _SMALLEST_CHUNK_BYTES))


def _pieces(spec: ParameterSpec, chunk_bytes: int) -> list[tuple[int, int, int]]:
    """A parameter as (first row, rows, floats of a row); none where it holds nothing."""
    rows, row_floats = spec.rows, spec.row_floats
    if not spec.floats:
        return []
    if spec.form is Form.DELTA and row_floats * _FLOAT_BYTES > chunk_bytes:
        rows, row_floats = spec.floats, 1  # only a dense update may cut through a row
    fitting = max(1, chunk_bytes // (row_floats * _FLOAT_BYTES))
    count = -(-rows // fitting)
    unit = _ALIGNMENT if row_floats == 1 and fitting >= _ALIGNMENT else 1
    each = min(fitting, -(-rows // count // unit) * unit)
    return [(first, min(each, rows - first), row_floats) for first in range(0, rows, each)]


def _bucket_count(chunks: int) -> int:
    """Many more buckets than chunks, within reason, so that few chunks must move together."""
    return min(1 << 14, max(64, 1 << (8 * max(chunks, 1) - 1).bit_length()))


def _bucket(spec: ParameterSpec, first_row: int, buckets: int) -> int:
    # A parameter of factors stays whole: its activations travel to every server that has rows.
    key = spec.name if spec.form is Form.FACTORS else f"{spec.name}:{first_row}"
    return zlib.crc32(key.encode()) % buckets


def _spread(loads: Sequence[int], places: int) -> list[int]:
    """A place for each load, by the rule of `place`."""
    chosen = [0] * len(loads)
    held = [0] * places
    for number in sorted(range(len(loads)), key=lambda number: (-loads[number], number)):
        chosen[number] = held.index(min(held))
        held[chosen[number]] += loads[number]
    return chosen


def _lanes_of(
    specs: Sequence[ParameterSpec],
    chunks: Sequence[Chunk],
    bucket_servers: Sequence[int],
    servers: int,
    lanes: int,
) -> tuple[int, ...]:
    """The lane of each chunk: what must stay together spread evenly over its server's lanes."""
    chosen = [0] * len(chunks)
    for server in range(servers):
        own = [chunk for chunk in chunks if bucket_servers[chunk.bucket] == server]
        groups = _groups(specs, own, lanes)
        loads = [sum(chunk.floats for chunk in group) for group in groups]
        for group, lane in zip(groups, _spread(loads, lanes), strict=True):
            for chunk in group:
                chosen[chunk.number] = lane
    return tuple(chosen)


def _groups(
    specs: Sequence[ParameterSpec], chunks: Sequence[Chunk], lanes: int
) -> list[list[Chunk]]:
    """Chunks that share a lane: the spans of parameters of factors; every other is on its own."""
    groups: list[list[Chunk]] = []
    whole: dict[int, list[Chunk]] = {}
    for chunk in chunks:
        if specs[chunk.parameter].form is Form.FACTORS:
            whole.setdefault(chunk.parameter, []).append(chunk)
        else:
            groups.append([chunk])
    for together in whole.values():
        each = -(-len(together) // min(_SPANS, lanes))
        groups += [together[first : first + each] for first in range(0, len(together), each)]
    return groups
