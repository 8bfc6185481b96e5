"""MNIST, shipped inside the package and checked whenever it is loaded."""

from __future__ import annotations

import hashlib
import io
from importlib import resources
from typing import Any, Literal

import numpy.typing as npt

from manyhands.data.arrays import ArraySource, arrays
from manyhands.data.idx import decode_idx
from manyhands.errors import ConfigError, DataError

Split = Literal["train", "test"]

MEAN, STD = 0.1307, 0.3081  # of the training images' pixels, between 0 and 1
SAMPLES = {"train": 60_000, "test": 10_000}
PREFIXES = {"train": "train", "test": "t10k"}
SHA256 = {
    "t10k-images-idx3-ubyte.gz": "1a1a05eab793c14bb050b398624a11b0ffd1a2953baed553b1b9bd079e2a20be",
    "t10k-labels-idx1-ubyte.gz": "b91679a0acfe4ba0e50a2437a903084cba1f5f92592b016a25a7dfd00455798b",
    "train-images-idx3-ubyte.gz": (
        "0b367032e93c5d0cea0925647cfdb18614af8ee15f83e6f2fc2ad904a6835971"
    ),
    "train-labels-idx1-ubyte.gz": (
        "1787548bbe0bff1ec2ecdc0ef292b02df999e2d1a6002d27500982c652b17203"
    ),
}


def mnist(split: Split) -> ArraySource:
    """The 60,000 training or 10,000 test digits: images [1, 28, 28], normalised, and labels 0..9.

    Takes 47 MB (train) or 8 MB (test) of memory: the pixels stay bytes until they are fetched.
    """
    if split not in SAMPLES:
        raise ConfigError(f"split is {split!r}: expected 'train' or 'test'.")
    prefix, samples = PREFIXES[split], SAMPLES[split]
    images = _load(f"{prefix}-images-idx3-ubyte.gz", shape=(samples, 28, 28))
    labels = _load(f"{prefix}-labels-idx1-ubyte.gz", shape=(samples,))
    return arrays(images, labels, layout="NHW", mean=MEAN, std=STD)


def _load(name: str, *, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    try:
        content = resources.files(__package__).joinpath("files", name).read_bytes()
    except OSError as error:
        raise DataError(f"{name} is missing from the installed package: reinstall it.") from error
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256[name]:
        raise DataError(
            f"{name} in the installed package has SHA-256 {found[:16]}..., expected "
            f"{SHA256[name][:16]}...: the file was changed; reinstall the package."
        )
    array = decode_idx(io.BytesIO(content), name=name)
    if array.shape != shape:
        raise DataError(f"{name} has shape {array.shape}: expected {shape}.")
    return array
