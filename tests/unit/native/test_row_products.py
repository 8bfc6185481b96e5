"""Products of samples with rows of their own, for every instruction set and number of threads."""

import pytest
import torch

from manyhands import _native


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("width", [1, 7, 32, 133])
def test_each_sample_meets_its_own_rows(simd: str, width: int, threads: int) -> None:
    torch.manual_seed(0)
    samples, height = 40, 300
    x, weight, bias = torch.randn(samples, width), torch.randn(height, width), torch.randn(height)
    counts = torch.randint(0, 150, (samples,))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    rows = torch.randint(height, (int(offsets[-1]),))
    of_sample = torch.repeat_interleave(counts)
    expected = (x[of_sample] * weight[rows]).sum(1)
    out = torch.empty(len(rows))
    _native.row_products(x, weight, None, offsets, rows, out, threads)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    _native.row_products(x, weight, bias, offsets, rows, out, threads)
    torch.testing.assert_close(out, expected + bias[rows], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 4)}, r"x has shape \(2, 4\); expected rows of 3"),
        ({"bias": torch.zeros(4)}, r"bias has shape \(4\); expected \(5\)"),
        ({"offsets": torch.tensor([0, 3])}, "2 offsets; expected 3"),
        ({"offsets": torch.tensor([0, 4, 3])}, "rise from 0 to the number of rows, 3"),
        ({"offsets": torch.tensor([1, 2, 3])}, "rise from 0"),
        ({"offsets": torch.tensor([0, 1, 2])}, "rise from 0"),
        ({"rows": torch.tensor([0, 5, 1])}, "row number is 5; expected 0 to 4"),
        ({"rows": torch.tensor([0, -1, 1])}, "row number is -1"),
        ({"out": torch.zeros(2)}, r"out has shape \(2\); expected \(3\)"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict, message: str) -> None:
    arguments = {
        "x": torch.zeros(2, 3),
        "weight": torch.zeros(5, 3),
        "bias": None,
        "offsets": torch.tensor([0, 1, 3]),
        "rows": torch.tensor([0, 4, 1]),
        "out": torch.zeros(3),
    }
    with pytest.raises(ValueError, match=message):
        _native.row_products(**(arguments | change))
