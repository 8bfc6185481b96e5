"""What a user may pass as data, and what is said to the rest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from manyhands.data.arrays import arrays
from manyhands.data.images import images
from manyhands.data.source import Source
from manyhands.data.sparse_source import as_csr, sparse
from manyhands.data.torch_dataset import from_dataset
from manyhands.errors import DataError

ACCEPTED = (
    "a source from manyhands.data, a pair (x, y) of arrays, tensors or sparse matrices, "
    "a map-style Dataset, or the path of a folder of images"
)


def as_source(data: Any) -> Source:
    """`data` as a source; a source stays itself. `DataError` for what can't be one."""
    if isinstance(data, Source):
        return data
    if isinstance(data, DataLoader):
        raise DataError(
            "a DataLoader was passed as data, but batches are formed here: pass its dataset "
            "(loader.dataset), and the batch size to the trainer."
        )
    if isinstance(data, (str, os.PathLike)):
        return _from_path(Path(data))
    if isinstance(data, (tuple, list)) and not isinstance(data, Dataset):
        return _from_pair(data)
    if isinstance(data, Dataset) or _reads_like_dataset(data):
        return from_dataset(data)
    raise DataError(f"data is {_described(data)}: expected {ACCEPTED}.")


def _from_path(path: Path) -> Source:
    if not path.is_dir():
        problem = "is a file" if path.exists() else "does not exist"
        raise DataError(
            f"{path} {problem}: expected a folder with one sub-folder of images per class; "
            "for idx files use manyhands.data.idx(images, labels), for extreme-label text "
            "manyhands.data.extreme(path)."
        )
    return images(path)


def _from_pair(data: tuple[Any, ...] | list[Any]) -> Source:
    if len(data) != 2:
        raise DataError(f"data is a {type(data).__name__} of {len(data)}: expected a pair (x, y).")
    if as_csr(data[0]) is not None:
        return sparse(data[0], data[1])
    return arrays(data[0], data[1])


def _reads_like_dataset(data: Any) -> bool:
    """Whether it is a dataset in all but name, as those of other libraries are."""
    if isinstance(data, (dict, bytes, bytearray)) or hasattr(data, "__array__"):
        return False  # keys, text, and arrays or tables whose labels are missing
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")


def _described(data: Any) -> str:
    if isinstance(data, (np.ndarray, torch.Tensor)):
        return f"one array of shape {tuple(data.shape)} without labels"
    return "None" if data is None else f"of type {type(data).__name__}"
