"""Reads idx files, the format of MNIST and its relatives, plain or gzipped.

Nothing in a header is believed before it is checked: the length it announces must be the length
that is there, and memory grows with the bytes that arrive, not with what a header claims.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from manyhands.data.arrays import ArraySource, arrays
from manyhands.data.normalisation import Statistic
from manyhands.errors import DataError

DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
GZIP_MAGIC = b"\x1f\x8b"
MAX_DIMENSIONS = 32  # what every supported NumPy can hold
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Header:
    """The start of an idx file: what follows it, and how many bytes that takes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def idx(
    images: str | PathLike[str],
    labels: str | PathLike[str],
    *,
    mean: Statistic | None = None,
    std: Statistic | None = None,
) -> ArraySource:
    """A source from two idx files, samples and labels, each plain or gzipped."""
    x, y = read_idx(images), read_idx(labels)
    if y.ndim != 1:
        raise DataError(
            f"{Path(labels)} has shape {y.shape}: expected one label per sample; "
            "are the two files in the right order?"
        )
    return arrays(x, y, mean=mean, std=std)


def read_idx(path: str | PathLike[str]) -> npt.NDArray[Any]:
    """The array in an idx file, in the machine's byte order. `DataError` if anything is off."""
    try:
        with Path(path).open("rb") as file:
            return decode_idx(file, name=str(Path(path)))
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"{Path(path)} can't be read: {reason}. Check the path.") from None


def decode_idx(file: BinaryIO, *, name: str) -> npt.NDArray[Any]:
    """The array in an open, seekable idx file, which messages call `name`."""
    zipped = file.read(2) == GZIP_MAGIC
    file.seek(0)
    try:
        stream = gzip.GzipFile(fileobj=file) if zipped else file
        header = _read_header(stream, name)
        body = _read_body(stream, header, name)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{name} is a damaged gzip file ({error}): fetch it again from where it came."
        ) from None
    array = np.frombuffer(body, dtype=header.dtype).reshape(header.shape)
    return array.astype(header.dtype.newbyteorder("="), copy=False)


def _read_header(stream: BinaryIO | gzip.GzipFile, name: str) -> Header:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in DTYPES:
        raise DataError(
            f"{name} begins with the bytes {magic.hex(' ') or '(none)'}: expected an idx file, "
            "which begins with 00 00, a type from 08 to 0e and the number of dimensions."
        )
    dimensions = magic[3]
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise DataError(
            f"{name} announces {dimensions} dimensions: expected 1 to {MAX_DIMENSIONS}."
        )
    sizes = stream.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise DataError(f"{name} ends inside its header: expected {dimensions} dimension sizes.")
    shape = struct.unpack(f">{dimensions}I", sizes)
    if 0 in shape:
        raise DataError(f"{name} announces shape {shape}: expected at least one value.")
    return Header(np.dtype(DTYPES[magic[2]]), shape)


def _read_body(stream: BinaryIO | gzip.GzipFile, header: Header, name: str) -> bytearray:
    """Everything after the header, which must be exactly as long as the header says."""
    body = bytearray()
    while len(body) <= header.size_bytes:
        # One byte more than is due, so that a longer file is noticed; gzip checks its sum there.
        piece = stream.read(min(PIECE_BYTES, header.size_bytes + 1 - len(body)))
        if not piece:
            break
        body += piece
    if len(body) != header.size_bytes:
        seen = f"only {len(body)}" if len(body) < header.size_bytes else "more"
        raise DataError(
            f"{name} announces shape {header.shape} of {header.dtype.name}, {header.size_bytes} "
            f"bytes, but holds {seen}: it is truncated or not the file it claims to be."
        )
    return body
