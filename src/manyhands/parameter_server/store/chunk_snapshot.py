"""A chunk at one moment, as bytes: what a joining copy is sent, what is stored, what is restored.

Weights, the rule's states, how many updates were applied, and whose. The bytes are made and taken
by the native server; here they are only looked into, or put together from pieces of another cut.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_HEADER = struct.Struct("<QQIIQII")  # as in docs/protocol.md
_CLIENT_BYTES = 16
_FLOAT_BYTES = 4
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """What precedes the floats. `arrays` counts the weights and the rule's states."""

    version: int
    begun: int  # updates begun, by which Adam corrects its bias
    last_lease: int  # under which the last update was applied
    arrays: int
    floats: int  # of each array
    clients: int  # in the log that follows the arrays

    @property
    def size_bytes(self) -> int:
        """Of the whole snapshot."""
        arrays = self.arrays * self.floats * _FLOAT_BYTES
        return HEADER_BYTES + arrays + self.clients * _CLIENT_BYTES

    @property
    def log_bytes(self) -> int:
        return self.clients * _CLIENT_BYTES

    def packed(self) -> bytes:
        return _HEADER.pack(
            self.version,
            self.begun,
            self.last_lease,
            self.arrays,
            self.floats,
            self.clients,
            0,
        )


def read_header(snapshot: bytes | bytearray | memoryview) -> SnapshotHeader:
    """The header of a snapshot. ValueError when it is none."""
    if len(snapshot) < HEADER_BYTES:
        raise ValueError(f"{len(snapshot)} bytes are no snapshot")
    *fields, reserved = _HEADER.unpack_from(snapshot)
    if reserved:
        raise ValueError("the header is not that of a snapshot")
    return SnapshotHeader(*fields)


def pack(header: SnapshotHeader, arrays: Sequence[npt.NDArray[np.float32]]) -> bytes:
    """A snapshot without a log of clients, of arrays that were put together elsewhere."""
    return b"".join([header.packed(), *(array.tobytes() for array in arrays)])
