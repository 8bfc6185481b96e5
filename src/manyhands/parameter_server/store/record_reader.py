"""Reads records back from segments and believes nothing that its checksum doesn't confirm."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from manyhands.errors import CheckpointError
from manyhands.parameter_server.store.catalogue import Found
from manyhands.parameter_server.store.chunk_snapshot import (
    HEADER_BYTES,
    SnapshotHeader,
    read_header,
)
from manyhands.parameter_server.store.segment_file import checksum

Floats = npt.NDArray[np.float32]


class DamagedRecord(CheckpointError):
    """A record that can't be believed; another one may take its place."""

    def __init__(self, found: Found, what: str) -> None:
        super().__init__(
            f"The record of {found.record.cut} in {found.segment.path} is damaged: {what}."
        )
        self.found = found


class RecordReader:
    """The segments of these records, open for reading. Thread-safe inside its `with` statement.

    FileNotFoundError when a segment was removed since it was found; DamagedRecord for what is
    truncated or not what was written.
    """

    def __init__(self, found: Sequence[Found]) -> None:
        self._paths = {one.segment.path for one in found}
        self._files: dict[Path, int] = {}

    def __enter__(self) -> RecordReader:
        try:
            for path in self._paths:
                self._files[path] = os.open(path, os.O_RDONLY)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def read_into(self, one: Found, arrays: Sequence[Floats]) -> None:
        """Read the weights and states of a record to where they belong."""
        record = one.record
        header = bytearray(HEADER_BYTES)
        floats = [array.view(np.uint8).data for array in arrays]
        log = bytearray(max(0, record.size_bytes - HEADER_BYTES - sum(map(len, floats))))
        parts = [memoryview(header), *floats, memoryview(log)]
        self._fill(one, parts)
        self._require_header(one, read_header(header))

    def snapshot(self, one: Found) -> bytes:
        """A record as the server takes it."""
        data = bytearray(one.record.size_bytes)
        self._fill(one, [memoryview(data)])
        self._require_header(one, read_header(data))
        return bytes(data)

    def arrays(self, one: Found) -> list[Floats]:
        """The weights and states of a record, in memory of their own."""
        arrays = [np.empty(one.record.cut.floats, np.float32) for _ in range(one.record.arrays)]
        self.read_into(one, arrays)
        return arrays

    def _fill(self, one: Found, parts: Sequence[memoryview]) -> None:
        record = one.record
        try:
            got = os.preadv(self._files[one.segment.path], parts, record.offset)
        except OSError as error:
            raise DamagedRecord(one, error.strerror or str(error)) from error
        if got != record.size_bytes:
            raise DamagedRecord(one, f"it has {got} of {record.size_bytes} bytes")
        found = 0
        for part in parts:
            found = checksum(part, found)
        if found != record.checksum:
            raise DamagedRecord(one, f"its checksum is {found:08x}, not {record.checksum:08x}")

    def _require_header(self, one: Found, header: SnapshotHeader) -> None:
        record = one.record
        expected = (record.arrays, record.cut.floats, record.size_bytes)
        if (header.arrays, header.floats, header.size_bytes) != expected:
            raise DamagedRecord(one, "it holds another number of floats than its index says")

    def _close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])
