"""A text file as blocks of whole lines, plain or gzipped, a few megabytes in memory at a time."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from manyhands.errors import DataError

BLOCK_BYTES = 4 << 20
LONGEST_LINE_BYTES = 64 << 20  # five million features; longer ones are no lines of text
UTF8_MARK = b"\xef\xbb\xbf"

# How files begin that people take for text: what they are, and what to do.
OTHERS = {
    b"PK\x03\x04": "a zip archive: unpack it",
    b"\xfd7zXZ": "compressed with xz: unpack it",
    b"BZh": "compressed with bzip2: unpack it",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: unpack it",
    b"\xff\xfe": "text in UTF-16: convert it to ASCII or UTF-8",
    b"\xfe\xff": "text in UTF-16: convert it to ASCII or UTF-8",
    b"\x93NUMPY": "a NumPy array: use manyhands.data.arrays",
    b"\x89HDF": "an HDF5 file: convert it to text",
}


def line_blocks(path: Path) -> Iterator[bytes]:
    """Blocks that end with a line feed, but for the last one of a file without a final one.

    `DataError` for a file that can't be read to its end: missing, a folder, damaged.
    """
    try:
        with path.open("rb") as file:
            yield from _blocks(_decompressed(file, path), path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path} is a damaged gzip file ({error}): fetch it again from where it came."
        ) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"{path} can't be read: {reason}. Check the path.") from None


def _decompressed(file: BinaryIO, path: Path) -> BinaryIO | gzip.GzipFile:
    start = file.read(8)
    if not start:
        raise DataError(f"{path} is empty: expected one sample in each line.")
    for magic, what in OTHERS.items():
        if start.startswith(magic):
            raise DataError(f"{path} is {what}, and pass the path of that.")
    file.seek(0)
    return gzip.GzipFile(fileobj=file) if start.startswith(b"\x1f\x8b") else file


def _blocks(stream: BinaryIO | gzip.GzipFile, path: Path) -> Iterator[bytes]:
    rest = bytearray()
    lines, first = 0, True
    while piece := stream.read(BLOCK_BYTES):
        if first:
            piece, first = piece.removeprefix(UTF8_MARK), False
        end = piece.rfind(b"\n") + 1
        if end:
            block = bytes(rest) + piece[:end]
            rest.clear()
            lines += block.count(b"\n")
            yield block
        rest += piece[end:]
        if len(rest) > LONGEST_LINE_BYTES:
            raise DataError(
                f"{path}, line {lines + 1} is longer than {LONGEST_LINE_BYTES >> 20} MiB: expected "
                "text with one sample in each line."
            )
    if rest:
        yield bytes(rest)
