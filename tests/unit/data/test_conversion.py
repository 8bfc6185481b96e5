"""What arrays become, and one sentence for each kind of array that can't be data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from manyhands.data.arrays import arrays
from manyhands.data.conversion import features, labels
from manyhands.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.uint8, torch.uint8),
        (np.float16, torch.float32),
        (np.float32, torch.float32),
        (np.float64, torch.float32),
        (np.longdouble, torch.float32),
        (">f8", torch.float32),
        (np.bool_, torch.float32),
        (np.int8, torch.int64),
        (">i4", torch.int64),
        (np.uint16, torch.int64),
        (np.uint64, torch.int64),
    ],
)
def test_dtypes_of_x(given: Any, expected: torch.dtype) -> None:
    x = features(np.ones((2, 3)).astype(given))
    assert x.dtype == expected
    assert x.tolist() == [[1, 1, 1], [1, 1, 1]]


def test_tensors_are_taken_too() -> None:
    assert features(torch.ones(2, 3, dtype=torch.bfloat16)).dtype == torch.float32
    assert not features(torch.ones(2, 3, requires_grad=True)).requires_grad
    assert features([torch.ones(3), torch.zeros(3)]).shape == (2, 3)
    assert features([[1.0, 2.0], [3.0, 4.0]]).shape == (2, 2)


def test_float32_arrays_are_not_copied() -> None:
    values = np.ones((2, 3), dtype=np.float32)
    assert features(values).data_ptr() == values.ctypes.data


def test_read_only_and_backward_arrays_are_taken_without_a_warning() -> None:
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    values.setflags(write=False)
    assert features(values[::-1]).tolist() == [[4, 5], [2, 3], [0, 1]]
    assert features(values).tolist() == values.tolist()


@pytest.mark.parametrize(
    ("shape", "layout", "expected"),
    [
        ((2, 6, 7), "auto", (2, 1, 6, 7)),
        ((2, 6, 7), "plain", (2, 6, 7)),
        ((2, 6, 7, 3), "auto", (2, 3, 6, 7)),
        ((2, 6, 7, 1), "auto", (2, 1, 6, 7)),
        ((2, 3, 6, 7), "auto", (2, 3, 6, 7)),
        ((2, 16, 6, 7), "auto", (2, 16, 6, 7)),
        ((2, 3, 4, 3), "NHWC", (2, 3, 3, 4)),
        ((2, 3, 4, 3), "NCHW", (2, 3, 4, 3)),
        ((2, 2, 3, 6, 7), "auto", (2, 2, 3, 6, 7)),
    ],
)
def test_layout_of_bytes(shape: Any, layout: Any, expected: Any) -> None:
    pixels = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    x = features(pixels, layout=layout)
    assert x.shape == expected
    assert x.is_contiguous()


def test_channels_last_keeps_every_pixel_in_its_place() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 6, 3), dtype=np.uint8)
    assert (features(pixels).numpy() == pixels.transpose(0, 3, 1, 2)).all()


def test_real_numbers_in_three_or_four_dimensions_may_be_anything_and_keep_their_shape() -> None:
    assert features(np.zeros((2, 6, 7))).shape == (2, 6, 7)
    assert features(np.zeros((2, 6, 7, 3))).shape == (2, 6, 7, 3)
    assert features(np.zeros((2, 6, 7)), layout="NHW").shape == (2, 1, 6, 7)


WRONG_X: list[tuple[Any, str]] = [
    (np.zeros((0, 3)), r"x has shape \(0, 3\): expected at least one value"),
    (np.zeros(3), r"x has shape \(3,\): expected one row per sample"),
    (np.float32(3.0), "x is a single number"),
    (np.array([["a"], ["b"]]), "of dtype <U1: expected an array of numbers"),
    (np.array([[object()], [None]]), "of dtype object"),
    (np.zeros((2, 2), dtype=complex), "of dtype complex128"),
    ("digits", "x is a str of dtype"),
    (None, "x is a NoneType of dtype object"),
    ([[1.0], [2.0, 3.0]], "x is not a rectangular array"),
    ([torch.zeros(2), torch.zeros(3)], "tensors that can't be stacked"),
    (torch.zeros(2, 2, dtype=torch.complex64), "expected a dense tensor of real numbers"),
    (torch.eye(2).to_sparse(), "torch.sparse_coo layout: expected a dense tensor"),
    (torch.zeros(2, 2, device="meta"), "meta device"),
    (
        np.array([[1.0, 2.0], [3.0, np.nan]]),
        "NaN or infinity .* in 1 of 2 samples, first in sample 1",
    ),
    (np.array([[np.inf], [-np.inf]]), "in 2 of 2 samples, first in sample 0"),
    (np.array([[1e300], [0.0]]), "as float32"),
    (np.array([[2**63]], dtype=np.uint64), "expected integers that fit in 64 bits"),
    (np.zeros((2, 3, 5, 3), dtype=np.uint8), "pass layout='NCHW' or layout='NHWC'"),
]


@pytest.mark.parametrize(("x", "message"), WRONG_X)
def test_wrong_x_is_refused_in_a_sentence(x: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        features(x)


def test_huge_but_finite_numbers_pass_the_check_for_nan() -> None:
    assert features(np.full((4, 4), 3e38, dtype=np.float32)).shape == (4, 4)


def test_wrong_layouts_are_refused() -> None:
    with pytest.raises(ConfigError, match="layout is 'HWC': expected one of auto"):
        features(np.zeros((2, 3)), layout="HWC")  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"shape \(2, 3\), which can't be read as layout NHWC"):
        features(np.zeros((2, 3)), layout="NHWC")


def test_labels_become_classes_or_values() -> None:
    assert labels(np.array([1, 2], dtype=np.uint8), samples=2).dtype == torch.int64
    assert labels([True, False], samples=2).tolist() == [1, 0]
    assert labels(np.array([0.5, 1.5]), samples=2).dtype == torch.float32
    assert labels(np.zeros((2, 3)), samples=2).shape == (2, 3)
    assert labels(np.zeros((2, 6, 7), dtype=int), samples=2).shape == (2, 6, 7)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.arange(3), "x has 2 samples and y has 3"),
        (np.array([[0], [1]]), r"class labels in shape \(2, 1\): expected \(2,\); pass y\[:, 0\]"),
        (np.array(["cat", "dog"]), "y is an array of dtype <U3"),
        (np.array([0.0, np.nan]), "y holds NaN"),
        (3, "y is a single number"),
        (None, "y is a NoneType"),
        ([], "y has shape"),
    ],
)
def test_wrong_labels_are_refused_in_a_sentence(y: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        arrays(np.zeros((2, 3)), y)
