"""The idx reader against files that are right, cut off, too long, foreign and damaged."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from manyhands.data.idx import DTYPES, idx, read_idx
from manyhands.errors import DataError

PIXELS = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


def encoded(array: npt.NDArray[Any], code: int = 0x08) -> bytes:
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, code, array.ndim]) + sizes + array.astype(DTYPES[code]).tobytes()


def written(folder: Path, content: bytes, name: str = "file") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("code", DTYPES)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_every_dtype_comes_back_in_native_order(tmp_path: Path, code: int, pack: Any) -> None:
    array = read_idx(written(tmp_path, pack(encoded(PIXELS, code))))
    assert array.dtype == np.dtype(DTYPES[code]).newbyteorder("=")
    assert array.dtype.isnative
    assert (array == PIXELS).all()


def test_a_pair_of_files_becomes_a_source(tmp_path: Path) -> None:
    images = written(tmp_path, gzip.compress(encoded(PIXELS)), "images.gz")
    labels = written(tmp_path, encoded(np.array([4, 9])), "labels")
    x, y = idx(str(images), labels, mean=0.5, std=0.5).fetch(np.array([1]), seed=0)
    assert x.shape == (1, 1, 3, 4)
    torch.testing.assert_close(x[0, 0], (torch.from_numpy(PIXELS[1]) / 255 - 0.5) / 0.5)
    assert y.tolist() == [9]


def test_files_in_the_wrong_order_are_noticed(tmp_path: Path) -> None:
    images = written(tmp_path, encoded(PIXELS), "images")
    labels = written(tmp_path, encoded(np.array([4, 9])), "labels")
    with pytest.raises(DataError, match=r"images has shape \(2, 3, 4\).*right order"):
        idx(labels, images)


HUGE = bytes([0, 0, 0x0E, 4]) + b"\xff" * 16
WRONG: list[tuple[bytes, str]] = [
    (b"", r"begins with the bytes \(none\): expected an idx file"),
    (b"\0\0", "begins with the bytes 00 00"),
    (b"%PDF-1.4", "begins with the bytes 25 50 44 46"),
    (bytes([0, 0, 0x0A, 1, 0, 0, 0, 1, 0]), "begins with the bytes 00 00 0a 01"),
    (bytes([0, 0, 8, 0]), "announces 0 dimensions"),
    (bytes([0, 0, 8, 200]), "announces 200 dimensions: expected 1 to 32"),
    (bytes([0, 0, 8, 2, 0, 0, 0, 1]), "ends inside its header"),
    (bytes([0, 0, 8, 2]) + struct.pack(">II", 0, 9), r"shape \(0, 9\): expected at least one"),
    (encoded(PIXELS)[:-1], r"shape \(2, 3, 4\) of uint8, 24 bytes, but holds only 23"),
    (encoded(PIXELS) + b"\0", "24 bytes, but holds more"),
    (HUGE + bytes(100), "but holds only 100"),
]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(("content", "message"), WRONG)
def test_a_wrong_file_is_named_with_what_was_seen(
    tmp_path: Path, content: bytes, message: str, pack: Any
) -> None:
    path = written(tmp_path, pack(content), "wrong")
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


def test_a_damaged_gzip_is_named(tmp_path: Path) -> None:
    packed = gzip.compress(encoded(PIXELS))
    flipped = bytearray(packed)
    flipped[-6] ^= 0xFF  # inside the checksum
    for content in (packed[:-3], packed[: len(packed) // 2], bytes(flipped), packed[:2]):
        with pytest.raises(DataError, match="is a damaged gzip file"):
            read_idx(written(tmp_path, content))


def test_a_path_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing can't be read: No such file"):
        read_idx(tmp_path / "nothing")
    with pytest.raises(DataError, match="can't be read: Is a directory"):
        read_idx(tmp_path)
