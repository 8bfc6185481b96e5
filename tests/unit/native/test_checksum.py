"""CRC-32C: known values, any length, in pieces; by the processor's instruction and by tables."""

from __future__ import annotations

import numpy as np
import pytest

from manyhands import kernels


@pytest.mark.usefixtures("simd")
def test_known_values() -> None:
    assert kernels.crc32c(b"") == 0
    assert kernels.crc32c(b"123456789") == 0xE3069283
    assert kernels.crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    assert kernels.crc32c(bytes(range(32))) == 0x46DD794E


@pytest.mark.usefixtures("simd")
def test_pieces_of_any_length_give_the_checksum_of_the_whole() -> None:
    data = np.random.default_rng(0).integers(0, 256, 100, np.uint8).tobytes()
    whole = kernels.crc32c(data)
    for cut in range(len(data) + 1):
        assert kernels.crc32c(data[cut:], kernels.crc32c(data[:cut])) == whole


@pytest.mark.usefixtures("simd")
def test_every_flipped_bit_is_seen() -> None:
    data = bytearray(b"a few weights, and states")
    whole = kernels.crc32c(data)
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        assert kernels.crc32c(memoryview(data)) != whole
        data[bit // 8] ^= 1 << bit % 8


def test_what_has_no_bytes_is_refused() -> None:
    with pytest.raises(TypeError):
        kernels.crc32c("text")  # type: ignore[arg-type]
    with pytest.raises((BufferError, ValueError)):
        kernels.crc32c(np.zeros((4, 4))[:, ::2])  # type: ignore[arg-type]
