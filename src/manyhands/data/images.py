"""A folder of images, one sub-folder per class, read when it is asked for."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from manyhands.data.image_cache import ImageCache
from manyhands.data.image_files import Form, Listing, decode, list_classes, picture_size
from manyhands.data.normalisation import Normalisation, Statistic, normalisation
from manyhands.data.source import Indices, Source
from manyhands.errors import ConfigError

CACHE_BYTES = 1 << 30
THREADS = 4  # Pillow decodes without the interpreter lock, and disks like a queue


class ImageSource(Source):
    """Pictures on disk, decoded on a few threads inside `fetch`, and kept while memory lasts.

    For one fetching thread at a time. `DataError` names a picture that can't be read.
    """

    def __init__(
        self, listing: Listing, form: Form, scaling: Normalisation, cache: ImageCache, threads: int
    ) -> None:
        self.classes = listing.classes
        self._paths = listing.paths
        self._labels = torch.tensor(listing.labels)
        self._form = form
        self._scaling = scaling
        self._cache = cache
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._pool_owner = 0

    def __len__(self) -> int:
        return len(self._paths)

    def fetch(self, indices: Indices, *, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        held = self._cache.holds(indices)
        pixels = torch.empty((len(indices), *self._form.shape), dtype=torch.uint8)
        pixels[torch.from_numpy(held)] = self._cache.read(indices[held])
        missing = np.flatnonzero(~held)
        for place, image in zip(missing, self._decode(indices[missing]), strict=True):
            self._cache.write(int(indices[place]), image)
            pixels[int(place)] = image
        labels = self._labels.index_select(0, torch.from_numpy(indices))
        return self._scaling.apply(pixels), labels

    @property
    def sliceable(self) -> bool:
        return True

    def tensors(self) -> list[torch.Tensor]:
        return [self._cache.pixels, self._cache.filled]

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> ImageSource:
        pixels, filled = tensors
        moved = copy.copy(self)
        moved._cache = ImageCache(pixels, filled)
        moved._pool = None
        return moved

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None}  # threads can't travel to another process

    def _decode(self, indices: Indices) -> Iterator[torch.Tensor]:
        if not len(indices):
            return iter(())
        paths = [self._paths[index] for index in indices]
        return self._threads_here().map(decode, paths, repeat(self._form))

    def _threads_here(self) -> ThreadPoolExecutor:
        """This process's threads: those of a parent do not survive a fork."""
        if self._pool is None or self._pool_owner != os.getpid():
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="decode")
            self._pool_owner = os.getpid()
        return self._pool


def images(
    folder: str | PathLike[str],
    *,
    size: int | tuple[int, int] | None = None,
    grey: bool = False,
    mean: Statistic | None = None,
    std: Statistic | None = None,
    cache_bytes: int = CACHE_BYTES,
    threads: int = THREADS,
) -> ImageSource:
    """A source over `folder/CLASS/**/IMAGE`; `source.classes` names the classes by number.

    Pictures are scaled to cover `size` (height and width) and cropped at their centre; without a
    size they must all be as large as the first. They come out as float32 between 0 and 1, then
    normalised by `mean` and `std` (one number, or one per channel).
    """
    if cache_bytes < 0 or threads < 1:
        raise ConfigError(
            f"cache_bytes is {cache_bytes} and threads is {threads}: expected 0 or more, and 1 or "
            "more."
        )
    listing = list_classes(Path(folder))
    height, width = picture_size(listing.paths[0]) if size is None else _checked_size(size)
    form = Form(grey=grey, height=height, width=width, resize=size is not None)
    scaling = normalisation(highest=255.0, mean=mean, std=std, channels=form.shape[0])
    cache = ImageCache.within(cache_bytes, samples=len(listing.paths), shape=form.shape)
    return ImageSource(listing, form, scaling, cache, threads)


def _checked_size(size: int | tuple[int, int]) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair):
        raise ConfigError(f"size is {size!r}: expected pixels, or a pair (height, width) of them.")
    return pair[0], pair[1]
