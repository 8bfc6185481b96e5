"""Decoded pictures kept in memory up to a budget: spare memory as an image cache (Adam, 3.1)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from manyhands.data.source import Indices


class ImageCache:
    """Pixels of the first samples of a source, as many as fit; the rest are never kept.

    An epoch visits every sample once and in random order, so that which ones are kept makes no
    difference and nothing need ever be thrown out.
    """

    def __init__(self, pixels: torch.Tensor, filled: torch.Tensor) -> None:
        self.pixels = pixels
        self.filled = filled

    @classmethod
    def within(cls, budget_bytes: int, *, samples: int, shape: tuple[int, ...]) -> ImageCache:
        """A cache for up to `samples` images of bytes in this shape. Memory is used as it fills."""
        count = min(samples, budget_bytes // math.prod(shape))
        pixels = torch.empty((count, *shape), dtype=torch.uint8)
        return cls(pixels, torch.zeros(count, dtype=torch.bool))

    def holds(self, indices: Indices) -> npt.NDArray[np.bool_]:
        """Which of these samples are here."""
        held = indices < len(self.filled)
        held[held] = self.filled.numpy()[indices[held]]
        return held

    def read(self, indices: Indices) -> torch.Tensor:
        return self.pixels.index_select(0, torch.from_numpy(indices))

    def write(self, index: int, image: torch.Tensor) -> None:
        """Keeps an image if it has a place here."""
        # Workers that share this memory may both write a slot: they write the same bytes, and the
        # mark is set last, so that a slot seen as filled is whole.
        if index < len(self.filled):
            self.pixels[index] = image
            self.filled[index] = True
