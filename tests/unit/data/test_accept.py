"""What users pass as data: each kind becomes the right source, or meets the right sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

import manyhands.data as data
from manyhands.data.accept import as_source
from manyhands.data.arrays import ArraySource
from manyhands.data.images import ImageSource
from manyhands.data.torch_dataset import DatasetSource
from manyhands.errors import DataError

X, Y = np.zeros((3, 2), dtype=np.float32), np.arange(3)


class Homemade:
    """A dataset in all but name."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(2), index


class Table(Homemade):
    """Rows and columns that NumPy can read, as data frames are."""

    def __array__(self) -> np.ndarray:
        return X


def test_a_source_stays_itself() -> None:
    source = data.arrays(X, Y)
    assert as_source(source) is source


@pytest.mark.parametrize("pair", [(X, Y), [X, Y], (torch.zeros(3, 2), Y.tolist())])
def test_a_pair_becomes_arrays(pair: Any) -> None:
    source = as_source(pair)
    assert isinstance(source, ArraySource)
    assert len(source) == 3


def test_datasets_become_sources() -> None:
    assert isinstance(as_source(TensorDataset(torch.zeros(3, 2))), ArraySource)
    assert isinstance(as_source(Homemade()), DatasetSource)


def test_a_folder_becomes_images(tmp_path: Path) -> None:
    (tmp_path / "ant").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "ant" / "0.png")
    assert isinstance(as_source(tmp_path), ImageSource)
    assert isinstance(as_source(str(tmp_path)), ImageSource)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, "data is None: expected a source"),
        (42, "data is of type int"),
        ({"x": X, "y": Y}, "data is of type dict"),
        (iter([X]), "data is of type list_iterator"),
        (Table(), "data is of type Table"),
        (X, r"data is one array of shape \(3, 2\) without labels"),
        (torch.zeros(3), r"data is one array of shape \(3,\) without labels"),
        ((X, Y, Y), "data is a tuple of 3: expected a pair"),
        ([], "data is a list of 0"),
        (DataLoader(TensorDataset(torch.zeros(3, 2))), r"DataLoader .* pass its dataset"),
        ("no/such/folder", "does not exist: expected a folder"),
        (Path(__file__), r"test_accept.py is a file: expected a folder .* manyhands.data.idx"),
    ],
)
def test_the_rest_is_refused_in_a_sentence(wrong: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_source(wrong)


def test_the_public_names_are_what_they_say() -> None:
    assert sorted(data.__all__) == data.__all__
    assert all(hasattr(data, name) for name in data.__all__)
    assert callable(data.arrays)
    assert callable(data.images)
    assert callable(data.idx)
