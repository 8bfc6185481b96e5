"""Hash functions of the index: who collides with whom, how often, and that nothing else decides."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from manyhands import _native
from manyhands.kernels import LshIndex

FAMILIES: dict[str, dict[str, Any]] = {
    "simhash": {"family": "simhash", "hashes": 9, "density": 1 / 3},
    "wta": {"family": "wta", "hashes": 5, "bin": 8},
    "dwta": {"family": "dwta", "hashes": 5, "bin": 8},
    "minhash": {"family": "minhash", "hashes": 3, "bin": 16, "density": 0.25},
}


def index(width: int, *, neurons: int = 10, tables: int = 20, **settings: Any) -> LshIndex:
    return LshIndex(neurons, width, **{"tables": tables, "bucket": 30, "seed": 3, **settings})


def compressed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Offsets, columns and values of the entries that are not zero."""
    rows, columns = torch.nonzero(x, as_tuple=True)
    counts = torch.bincount(rows, minlength=len(x))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return offsets, columns.to(torch.int32), x[rows, columns].contiguous()


def agreement(tables: LshIndex, a: torch.Tensor, b: torch.Tensor) -> float:
    """The share of tables in which two vectors fall into the same bucket."""
    codes = tables.codes(torch.stack([a, b]))
    return float((codes[0] == codes[1]).mean())


@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 9, 31, 33, 100, 129])
@pytest.mark.parametrize("family", FAMILIES)
def test_codes_do_not_depend_on_the_instruction_set(family: str, width: int, simd: str) -> None:
    torch.manual_seed(width)
    x = torch.randn(37, width)
    x[x.abs() < 0.3] = 0
    codes = index(width, **FAMILIES[family]).codes(x)
    _native.use_simd("portable")
    assert np.array_equal(codes, index(width, **FAMILIES[family]).codes(x))


@pytest.mark.parametrize("family", FAMILIES)
def test_codes_do_not_depend_on_the_neighbours(family: str, simd: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(70, 50)
    tables = index(50, **FAMILIES[family])
    together = tables.codes(x)
    assert together.dtype == np.uint32
    assert together.shape == (70, 20)
    for i in (0, 1, 31, 32, 69):
        assert np.array_equal(tables.codes(x[i : i + 1]), together[i : i + 1])
    assert len(np.unique(together[:, 0])) > 10


@pytest.mark.parametrize("kept", [0.0, 0.05, 0.3, 0.9])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_sparse_row_hashes_as_the_row_written_out(family: str, kept: float) -> None:
    torch.manual_seed(1)
    x = torch.randn(50, 83)
    x[torch.rand_like(x) >= kept] = 0
    x[3, 5], x[4, 6], x[5] = float("nan"), float("inf"), -x[5].abs()
    tables = index(83, **FAMILIES[family])
    assert np.array_equal(tables.codes_sparse(*compressed(x)), tables.codes(x))


def test_sparse_rows_without_values_are_ones() -> None:
    x = (torch.rand(9, 40) < 0.2).float()
    offsets, columns, _ = compressed(x)
    for settings in FAMILIES.values():
        tables = index(40, **settings)
        assert np.array_equal(tables.codes_sparse(offsets, columns, None), tables.codes(x))


@pytest.mark.parametrize("angle", [0.3, 1.0, math.pi / 2, 2.5])
def test_simhash_agrees_by_the_angle(angle: float) -> None:
    torch.manual_seed(2)
    a, other = torch.linalg.qr(torch.randn(256, 2)).Q.T.contiguous()
    b = math.cos(angle) * a + math.sin(angle) * other
    tables = index(256, family="simhash", hashes=1, tables=4000)
    assert agreement(tables, a, b) == pytest.approx(1 - angle / math.pi, abs=0.03)
    assert agreement(tables, a, 7 * a) == 1.0


def test_a_winner_of_two_agrees_by_the_pairs_in_the_same_order() -> None:
    torch.manual_seed(3)
    a = torch.randn(60)
    b = a + torch.randn(60)
    order = (a[:, None] > a) == (b[:, None] > b)
    pairs = torch.triu(torch.ones(60, 60, dtype=torch.bool), diagonal=1)
    expected = order[pairs].float().mean().item()
    for family in ("wta", "dwta"):
        tables = index(60, family=family, hashes=1, bin=2, tables=4000)
        assert agreement(tables, a, b) == pytest.approx(expected, abs=0.03)
        assert agreement(tables, a, a.exp() if family == "wta" else a * 5) == 1.0


def test_minhash_agrees_by_the_members_in_common() -> None:
    a, b = torch.zeros(64), torch.zeros(64)
    a[:24] = 1
    b[12:40] = 2
    tables = index(64, family="minhash", hashes=1, bin=64, density=1.0, tables=4000)
    assert agreement(tables, a, b) == pytest.approx(12 / 40, abs=0.03)
    # One bin of 8 that is empty borrows; over all tables the share of common members remains.
    tables = index(64, family="minhash", hashes=1, bin=8, density=1.0, tables=4000)
    assert agreement(tables, a, b) == pytest.approx(12 / 40, abs=0.09)


def test_minhash_looks_at_the_largest_only() -> None:
    torch.manual_seed(4)
    a = torch.rand(64)
    a[:16] += 10
    b = torch.rand(64)
    b[:16] += 5
    assert agreement(index(64, tables=200, **FAMILIES["minhash"]), a, b) == 1.0
    b[0] = 0
    assert agreement(index(64, tables=200, **FAMILIES["minhash"]), a, b) < 1.0


@pytest.mark.parametrize("family", FAMILIES)
def test_the_nearer_the_likelier(family: str) -> None:
    torch.manual_seed(5)
    a = torch.randn(128)
    noise = torch.randn(128)
    tables = index(128, tables=2000, **{**FAMILIES[family], "hashes": 2})
    shares = [agreement(tables, a, a + noise * by) for by in (0.1, 0.4, 1.0, 3.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 2 * shares[-1]


def test_bins_of_zeros_tell_nothing_in_wta_and_borrow_in_dwta() -> None:
    a, b = torch.zeros(400), torch.zeros(400)
    a[:20] = torch.rand(20) + 1
    b[200:220] = torch.rand(20) + 1
    wta = index(400, family="wta", hashes=1, bin=8, tables=1000)
    dwta = index(400, family="dwta", hashes=1, bin=8, tables=1000)
    assert agreement(wta, a, b) > 0.4
    assert agreement(dwta, a, b) < 0.2
    assert agreement(dwta, a, a) == 1.0


@pytest.mark.parametrize("family", FAMILIES)
def test_zeros_and_what_is_not_a_number_have_codes_too(family: str, simd: str) -> None:
    x = torch.zeros(3, 20)
    x[1] = float("nan")
    x[2] = -float("inf")
    tables = index(20, **FAMILIES[family])
    tables.build(torch.cat([x, x, x, x])[:10].clone())
    occupancy = tables.occupancy()
    assert occupancy["held"] == 10 * 20
    assert tables.codes(x).max() < occupancy["buckets"]


def test_codes_follow_the_seed() -> None:
    x = torch.randn(30, 64)
    for settings in FAMILIES.values():
        one = index(64, **settings).codes(x)
        assert np.array_equal(one, index(64, **settings).codes(x))
        assert not np.array_equal(one, index(64, **settings, seed=4).codes(x))


@pytest.mark.parametrize(
    ("columns", "values", "sentence"),
    [
        ([0, 9], [1.0, 1.0], "A column is 9; expected 0 to 7."),
        ([-1, 2], [1.0, 1.0], "A column is -1; expected 0 to 7."),
        ([2, 2], [1.0, 1.0], "Row 0 has column 2 after 2; expected columns that rise."),
        ([1, 2], [1.0], "There are 1 values; expected 2, one for each column."),
    ],
)
def test_bad_sparse_rows_are_refused(
    columns: list[int], values: list[float], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        index(8, **FAMILIES["dwta"]).codes_sparse(
            np.array([0, 2]), np.array(columns, np.int32), np.array(values, np.float32)
        )


def test_bad_offsets_are_refused() -> None:
    tables = index(8, **FAMILIES["dwta"])
    two = np.array([0, 1], np.int32)
    for offsets in ([0, 1], [1, 2], [0, 3], [0, 3, 2], [0, 2, 1, 2]):
        with pytest.raises(ValueError, match="offset"):
            tables.codes_sparse(np.array(offsets), two, None)
    with pytest.raises(ValueError, match="There are no offsets"):
        tables.codes_sparse(np.array([], np.int64), two, None)
