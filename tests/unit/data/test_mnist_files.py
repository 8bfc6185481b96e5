"""MNIST as shipped: right in number, shape and scale, and refused when a file was changed."""

from __future__ import annotations

from importlib import resources

import numpy as np
import pytest
import torch

from manyhands.data.datasets import mnist as module
from manyhands.data.datasets.mnist import mnist
from manyhands.errors import ConfigError, DataError


def test_the_training_digits_are_normalised() -> None:
    source = mnist("train")
    assert len(source) == 60_000
    x, y = source.fetch(np.arange(60_000), seed=0)
    assert x.shape == (60_000, 1, 28, 28)
    assert abs(float(x.mean())) < 1e-3
    assert abs(float(x.std()) - 1.0) < 1e-3
    assert torch.bincount(y).tolist()[:3] == [5923, 6742, 5958]
    assert y[:5].tolist() == [5, 0, 4, 1, 9]


def test_the_test_digits_are_others() -> None:
    source = mnist("test")
    assert len(source) == 10_000
    assert source.fetch(np.arange(5), seed=0)[1].tolist() == [7, 2, 1, 0, 4]


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ConfigError, match="split is 'validation': expected 'train' or 'test'"):
        mnist("validation")  # type: ignore[arg-type]


def test_a_changed_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.SHA256, "t10k-labels-idx1-ubyte.gz", "0" * 64)
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte.gz .* reinstall"):
        mnist("test")


def test_a_missing_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.PREFIXES, "test", "absent")
    with pytest.raises(DataError, match=r"absent-images-idx3-ubyte.gz is missing"):
        mnist("test")


def test_the_authors_and_the_licence_are_named_beside_the_files() -> None:
    text = (
        resources.files("manyhands.data.datasets").joinpath("files", "ATTRIBUTION.md").read_text()
    )
    for words in ("Yann LeCun", "Corinna Cortes", "Christopher J.C. Burges", "CC BY-SA 3.0"):
        assert words in text
