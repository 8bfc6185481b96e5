"""The encodings under hypothesis: what they may lose, and bytes that nobody should believe."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from manyhands import _native

Floats = npt.NDArray[np.float32]

ENCODINGS = ("float32", "bfloat16", "int8", "topk")
BLOCK = 256
SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
FLOATS = st.floats(-(2.0**100), 2.0**100, width=32)
VALUES = arrays.arrays(np.float32, st.integers(0, 600), elements=FLOATS, fill=FLOATS)
ANY_FLOATS = st.floats(width=32)
ANY_VALUES = arrays.arrays(np.float32, st.integers(1, 300), elements=ANY_FLOATS)


def sent(encoding: str, values: Floats, count: int = 0) -> Floats:
    """The values as the server decodes them."""
    out = np.empty_like(values)
    _native.decode(encoding, _native.encode(encoding, values, count), len(values), out)
    return out


@given(VALUES, st.data())
def test_sizes_are_as_announced(values: Floats, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(values)))
    for encoding in ENCODINGS:
        payload = _native.encode(encoding, values, count)
        assert len(payload) == _native.encoded_bytes(encoding, len(values), count)


@given(VALUES)
def test_float32_loses_nothing(values: Floats) -> None:
    np.testing.assert_array_equal(sent("float32", values), values)


@given(VALUES)
def test_bfloat16_is_off_by_half_a_step(values: Floats) -> None:
    error = np.abs(sent("bfloat16", values).astype(np.float64) - values)
    assert np.all(error <= np.abs(values.astype(np.float64)) / 256 + SMALLEST_NORMAL)


@given(ANY_VALUES)
def test_bfloat16_rounds_to_nearest_even(values: Floats) -> None:
    torch = pytest.importorskip("torch")
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    np.testing.assert_array_equal(sent("bfloat16", values), expected)


@given(VALUES)
def test_int8_is_off_by_half_a_step_of_its_block(values: Floats) -> None:
    error = np.abs(sent("int8", values).astype(np.float64) - values)
    for first in range(0, len(values), BLOCK):
        peak = float(np.abs(values[first : first + BLOCK]).max())
        bound = peak / 127 * 0.5001 if peak / 127 >= SMALLEST_NORMAL else peak
        assert error[first : first + BLOCK].max() <= bound


@given(VALUES, st.data())
def test_top_k_keeps_the_largest_exactly(values: Floats, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(values)))
    kept = sent("topk", values, count)
    order = np.argsort(-np.abs(values), kind="stable")
    expected = np.zeros_like(values)
    expected[order[:count]] = values[order[:count]]
    np.testing.assert_array_equal(kept, expected)


@given(VALUES, st.sampled_from(["bfloat16", "int8", "topk"]), st.data())
def test_error_feedback_loses_nothing_in_the_end(
    values: Floats, encoding: str, data: st.DataObject
) -> None:
    """What is left after sending shrinks: sent and left over add up to the values."""
    least = max(len(values) // 2, min(1, len(values)))  # a client sends one value at least
    count = data.draw(st.integers(least, len(values)))
    left, arrived = values.copy(), np.zeros_like(values)
    for _ in range(4):
        step = sent(encoding, left, count)
        arrived += step
        left -= step
    scale = float(np.abs(values).max(initial=0.0)) + SMALLEST_NORMAL
    np.testing.assert_allclose(arrived, values, atol=scale * 1e-4, rtol=0)


@given(ANY_VALUES)
def test_what_is_not_finite_stays_noticeable(values: Floats) -> None:
    if np.isfinite(values).all():
        return
    for encoding in ENCODINGS:
        assert not _native.finite(encoding, _native.encode(encoding, values, 1), len(values))


@given(VALUES)
def test_finite_values_pass(values: Floats) -> None:
    for encoding in ENCODINGS:
        assert _native.finite(encoding, _native.encode(encoding, values, len(values)), len(values))


@given(VALUES, st.data())
def test_a_range_decodes_as_the_whole_does(values: Floats, data: st.DataObject) -> None:
    n = len(values)
    first = data.draw(st.integers(0, n))
    part = np.empty(data.draw(st.integers(0, n - first)), np.float32)
    for encoding in ENCODINGS:
        payload = _native.encode(encoding, values, n // 2)
        _native.decode(encoding, payload, n, part, first)
        whole = sent(encoding, values, n // 2)
        np.testing.assert_array_equal(part, whole[first : first + len(part)])


@given(st.sampled_from(ENCODINGS), st.binary(max_size=64), st.integers(0, 80))
def test_random_bytes_decode_or_are_refused(encoding: str, payload: bytes, n: int) -> None:
    guarded = np.full(n + 2, 7.0, np.float32)
    try:
        _native.decode(encoding, payload, n, guarded[1:-1])
    except ValueError:
        assert np.all(guarded == 7.0)
    assert guarded[0] == guarded[-1] == 7.0


@pytest.mark.parametrize("positions", [[1, 1], [2, 1], [0, 4], [0, 2**32 - 1]])
def test_top_k_positions_must_rise_and_lie_within(positions: list[int]) -> None:
    payload = np.array(positions, np.uint32).tobytes() + np.ones(2, np.float32).tobytes()
    with pytest.raises(ValueError, match="is not 4 values in topk"):
        _native.decode("topk", payload, 4, np.empty(4, np.float32))


def test_an_unknown_encoding_is_named() -> None:
    with pytest.raises(ValueError, match="'gzip'; expected float32, bfloat16, int8 or topk"):
        _native.encoded_bytes("gzip", 1)
