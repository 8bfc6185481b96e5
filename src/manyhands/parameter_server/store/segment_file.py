"""A segment: records of many chunks in one file that appears whole or not at all.

    magic | snapshot | snapshot | ... | index, JSON | trailer: where the index is, its checksum

A segment is written under another name, forced to the disk once, however many chunks are in it, and
renamed: a power cut leaves the whole segment or none. It is never changed afterwards. The index
names each record's parameter, rows, position and checksum, so that any other cut of the model can
read it. Adam, section 3.3.2: the durable store is log-structured.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands import kernels
from manyhands.errors import CheckpointError
from manyhands.parameter_server.store.chunk_snapshot import SnapshotHeader, read_header

SUFFIX = ".segment"
PARTIAL = ".partial"
_MAGIC = b"MHSEG\x00\x00\x01"
_TRAILER = struct.Struct("<QQI4s")  # offset and bytes of the index, its checksum, an end mark
_END = b"MHIX"
_FORMAT = "manyhands segment 1"

Buffer = bytes | bytearray | memoryview


def checksum(data: Buffer, before: int = 0) -> int:
    """CRC-32C of the data, going on from that of what came before it."""
    return kernels.crc32c(data, before)


@dataclass(frozen=True, slots=True)
class Cut:
    """Which floats of which parameter a record holds, and which rule moves them."""

    parameter: str
    shape: tuple[int, ...]
    rule: str
    first_row: int
    rows: int
    row_floats: int

    @property
    def start(self) -> int:
        """Its first float among the parameter's."""
        return self.first_row * self.row_floats

    @property
    def floats(self) -> int:
        return self.rows * self.row_floats

    @property
    def parameter_floats(self) -> int:
        """Of the whole parameter."""
        return math.prod(self.shape)

    def __hash__(self) -> int:
        return hash((self.parameter, self.first_row))  # enough to tell, and asked for often

    def __str__(self) -> str:
        return f"'{self.parameter}', floats {self.start} to {self.start + self.floats - 1}"


@dataclass(frozen=True, slots=True)
class Record:
    """One chunk in a segment: what it is, how new it is and where its snapshot lies."""

    cut: Cut
    lease: int
    version: int
    begun: int
    arrays: int
    offset: int
    size_bytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A finished file. `era` counts the runs that went on in one store; `order` is the memory
    order of its four-dimensional parameters."""

    path: Path
    era: int
    order: str
    written_at: float  # seconds since 1970
    records: tuple[Record, ...]


class SegmentWriter:
    """A segment under way. Not thread-safe. End it with `finish` or `discard`.

    Raises OSError when the disk is full or gone; nothing but `discard` may follow.
    """

    def __init__(self, path: Path, *, era: int, order: str) -> None:
        self._path = path
        self._partial = path.with_suffix(PARTIAL)
        self._era = era
        self._order = order
        self._records: list[Record] = []
        self._file = self._partial.open("xb")
        # Whoever finds the file unlocked knows that its writer is gone. Where a file system has no
        # locks, nobody can tell, and nothing is removed.
        with contextlib.suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._file.write(_MAGIC)
        self.size_bytes = len(_MAGIC)

    def __len__(self) -> int:
        return len(self._records)

    def add(self, cut: Cut, snapshot: bytes) -> None:
        header = read_header(snapshot)
        _require_fit(cut, header, snapshot)
        self._file.write(snapshot)
        self._records.append(
            Record(
                cut=cut,
                lease=header.last_lease,
                version=header.version,
                begun=header.begun,
                arrays=header.arrays,
                offset=self.size_bytes,
                size_bytes=len(snapshot),
                checksum=checksum(snapshot),
            )
        )
        self.size_bytes += len(snapshot)

    def finish(self) -> Segment:
        """Force everything to the disk, then give the segment its name."""
        segment = Segment(self._path, self._era, self._order, time.time(), tuple(self._records))
        index = _encode_index(segment)
        self._file.write(index)
        self._file.write(_TRAILER.pack(self.size_bytes, len(index), checksum(index), _END))
        self._file.flush()
        os.fsync(self._file.fileno())
        os.rename(self._partial, self._path)
        self._file.close()
        force_to_disk(self._path.parent)
        return segment

    def discard(self) -> None:
        """Leave nothing behind; also after an error."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._partial.unlink()


def read_segment(path: Path) -> Segment:
    """The index of a segment. CheckpointError, in one sentence, when it is damaged."""
    try:
        with path.open("rb") as file:
            return _read_index(path, file)
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise CheckpointError(f"{path} is damaged: {error}.") from error


def remove_abandoned(folder: Path) -> None:
    """Remove segments that were never finished and whose writers are gone."""
    for partial in folder.glob(f"*{PARTIAL}"):
        with contextlib.suppress(OSError), partial.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            partial.unlink()


def force_to_disk(folder: Path) -> None:
    """Make names that were given or taken in a folder outlast a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems can't, and need not
            raise
    finally:
        os.close(descriptor)


def _require_fit(cut: Cut, header: SnapshotHeader, snapshot: bytes) -> None:
    if header.size_bytes != len(snapshot) or header.floats != cut.floats:
        raise ValueError(
            f"the snapshot of {cut} has {len(snapshot)} bytes and {header.floats} floats; "
            f"expected {header.size_bytes} and {cut.floats}"
        )


def _encode_index(segment: Segment) -> bytes:
    parameters = list(dict.fromkeys(_parameter(record) for record in segment.records))
    numbers = {parameter: number for number, parameter in enumerate(parameters)}
    rows = [
        [
            numbers[_parameter(record)],
            record.cut.first_row,
            record.cut.rows,
            record.cut.row_floats,
            record.lease,
            record.version,
            record.begun,
            record.offset,
            record.size_bytes,
            record.checksum,
        ]
        for record in segment.records
    ]
    index = {
        "format": _FORMAT,
        "era": segment.era,
        "order": segment.order,
        "written_at": segment.written_at,
        "parameters": parameters,
        "records": rows,
    }
    return json.dumps(index, separators=(",", ":")).encode()


def _parameter(record: Record) -> tuple[str, tuple[int, ...], str, int]:
    return record.cut.parameter, record.cut.shape, record.cut.rule, record.arrays


def _read_index(path: Path, file: Any) -> Segment:
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("it does not begin as a segment")
    end = file.seek(0, os.SEEK_END) - _TRAILER.size
    if end < len(_MAGIC):
        raise ValueError("it is cut off")
    file.seek(end)
    offset, size, expected, mark = _TRAILER.unpack(file.read(_TRAILER.size))
    if mark != _END or offset + size != end:
        raise ValueError("it is cut off")
    file.seek(offset)
    index = file.read(size)
    if checksum(index) != expected:
        raise ValueError("the checksum of its index is wrong")
    return _decode_index(path, json.loads(index), offset)


def _decode_index(path: Path, index: dict[str, Any], end: int) -> Segment:
    if index["format"] != _FORMAT:
        raise ValueError(f"it is of the format {index['format']!r}; expected {_FORMAT!r}")
    parameters = [
        (str(name), tuple(map(int, shape)), str(rule), int(arrays))
        for name, shape, rule, arrays in index["parameters"]
    ]
    records = tuple(_decode_record(parameters, row) for row in index["records"])
    if any(record.offset + record.size_bytes > end for record in records):
        raise ValueError("a record lies outside")
    return Segment(
        path, int(index["era"]), str(index["order"]), float(index["written_at"]), records
    )


def _decode_record(
    parameters: Sequence[tuple[str, tuple[int, ...], str, int]], row: Sequence[int]
) -> Record:
    number, first_row, rows, row_floats, *rest = map(int, row)
    lease, version, begun, offset, size_bytes, expected = rest
    name, shape, rule, arrays = parameters[number]
    cut = Cut(name, shape, rule, first_row, rows, row_floats)
    return Record(cut, lease, version, begun, arrays, offset, size_bytes, expected)
