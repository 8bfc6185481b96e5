"""The walks over flat arrays against NumPy, range by range."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from manyhands import _native

Floats = npt.NDArray[np.float32]

FLOATS = 100
STARTS = np.array([0, 16, 48], np.int64)
COUNTS = np.array([5, 32, 17], np.int64)


def random_floats(seed: int) -> Floats:
    return np.random.default_rng(seed).normal(size=FLOATS).astype(np.float32)


def inside() -> npt.NDArray[np.bool_]:
    mask = np.zeros(FLOATS, bool)
    for start, count in zip(STARTS, COUNTS, strict=True):
        mask[start : start + count] = True
    return mask


def test_add_and_clear(simd: str) -> None:
    accumulated, outgoing = random_floats(1), random_floats(2)
    expected = accumulated + outgoing
    _native.add_and_clear(accumulated, outgoing)
    np.testing.assert_array_equal(outgoing, expected)
    assert not accumulated.any()


def test_take(simd: str) -> None:
    outgoing, staged = random_floats(1), random_floats(2)
    before, staged_before = outgoing.copy(), staged.copy()
    _native.take(outgoing, staged, STARTS, COUNTS)
    np.testing.assert_array_equal(staged, np.where(inside(), before, staged_before))
    np.testing.assert_array_equal(outgoing, np.where(inside(), 0, before))


def test_difference(simd: str) -> None:
    base, local, out = random_floats(1), random_floats(2), random_floats(3)
    out_before = out.copy()
    _native.difference(base, local, out, STARTS, COUNTS)
    np.testing.assert_array_equal(out, np.where(inside(), base - local, out_before))


@pytest.mark.parametrize("with_sent", [True, False])
def test_merge(simd: str, with_sent: bool) -> None:
    local, base, sent, pulled = (random_floats(seed) for seed in range(4))
    moved = local + (pulled - (base - sent if with_sent else base))
    local_expected = np.where(inside(), moved, local)
    base_expected = np.where(inside(), pulled, base)
    _native.merge(local, base, sent if with_sent else None, pulled, STARTS, COUNTS)
    np.testing.assert_allclose(local, local_expected, rtol=1e-6)
    np.testing.assert_array_equal(base, base_expected)


@pytest.mark.parametrize(
    ("starts", "counts"),
    [([-1], [1]), ([0], [-1]), ([0], [101]), ([101], [0]), ([50], [51]), ([2**62], [2**62])],
)
def test_ranges_must_lie_within(starts: list[int], counts: list[int]) -> None:
    with pytest.raises(ValueError, match="the array has 100"):
        _native.take(
            random_floats(1), random_floats(2), np.array(starts), np.array(counts, np.int64)
        )


def test_sizes_must_agree() -> None:
    with pytest.raises(ValueError, match="have 100 and 99 floats"):
        _native.add_and_clear(random_floats(1), random_floats(2)[:99])
    with pytest.raises(ValueError, match="3 starts and 2 counts"):
        _native.take(random_floats(1), random_floats(2), STARTS, COUNTS[:2])


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError):
        _native.add_and_clear(random_floats(1).astype(np.float64), random_floats(2))  # type: ignore[arg-type]
