"""The idx reader under hypothesis: what is written comes back, and nothing else is believed."""

from __future__ import annotations

import gzip
import io
import struct
import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from manyhands.data.idx import DTYPES, decode_idx
from manyhands.errors import DataError

SHAPES = arrays.array_shapes(min_dims=1, max_dims=4, max_side=6)
ARRAYS = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda code: st.tuples(st.just(code), arrays.arrays(DTYPES[code], SHAPES))
)


def encoded(code: int, array: npt.NDArray[np.generic]) -> bytes:
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, code, array.ndim]) + sizes + array.tobytes()


def decoded(content: bytes) -> npt.NDArray[np.generic]:
    return decode_idx(io.BytesIO(content), name="file")


@given(ARRAYS, st.booleans())
def test_what_is_written_comes_back(
    written: tuple[int, npt.NDArray[np.generic]], zipped: bool
) -> None:
    content = encoded(*written)
    array = decoded(gzip.compress(content) if zipped else content)
    np.testing.assert_array_equal(array, written[1])
    assert array.dtype.isnative


@given(ARRAYS, st.booleans(), st.data())
def test_any_truncation_is_a_data_error(
    written: tuple[int, npt.NDArray[np.generic]], zipped: bool, data: st.DataObject
) -> None:
    content = encoded(*written)
    whole = gzip.compress(content) if zipped else content
    kept = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DataError, match="file"):
        decoded(whole[:kept])


@given(ARRAYS, st.binary(min_size=1, max_size=8), st.booleans())
def test_any_surplus_is_a_data_error(
    written: tuple[int, npt.NDArray[np.generic]], surplus: bytes, zipped: bool
) -> None:
    content = encoded(*written) + surplus
    with pytest.raises(DataError, match="but holds more"):
        decoded(gzip.compress(content) if zipped else content)


PLAUSIBLE = st.builds(
    lambda code, sizes, rest: (
        bytes([0, 0, code, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes) + rest
    ),
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.integers(0, 2**32 - 1), max_size=40),
    st.binary(max_size=64),
)


@given(st.one_of(st.binary(max_size=64), PLAUSIBLE), st.sampled_from(["plain", "gzip", "magic"]))
def test_random_bytes_neither_crash_nor_allocate(content: bytes, dress: str) -> None:
    dressed = {"plain": content, "gzip": gzip.compress(content), "magic": b"\x1f\x8b" + content}
    tracemalloc.start()
    try:
        decoded(dressed[dress])
    except DataError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8 << 20
