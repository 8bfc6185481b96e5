"""The geometry of augmentation: one bilinear resampling of each image along its own random grid.

A pixel p of the result shows the point `A (p - c) + c + shift + bend(p)` of the original: c is the
centre, A turns, shears and stretches, and `bend` is elastic, white noise smoothed by a Gaussian.
All of it is one product `down @ coefficients @ across.T` for each image and axis:

    columns of `down`:    Gaussians over the rows,    1, y
    columns of `across`:  Gaussians over the columns, x, 1
    coefficients:         noise in the Gaussians' block; in the last corner [[a, shift], [0, b]]
                          for a point a x + b y + shift; 0 elsewhere
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True, kw_only=True)
class Warp:
    """Ranges of the random grid: angles in radians, lengths in pixels."""

    rotation: float
    log_scale: float
    shear: float
    shift: float
    elastic: float
    sigma: float

    def apply(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """`images` [N, C, H, W] float32, each resampled along a grid of its own."""
        count, _, height, width = images.shape
        sigma = self.sigma if self.elastic > 0.0 else None
        down, across = _down(height, sigma), _across(width, sigma)
        coefficients = self._noise(count, down.shape[1], across.shape[1], generator)
        self._draw_affine(coefficients[:, :, -2:, -2:], generator)
        coefficients *= _unit_pixels(height, width)
        grid = torch.matmul(down, torch.matmul(coefficients, across.T))
        # grid_sample wants (x, y) last and reads this permuted view as fast as a copy of it.
        return F.grid_sample(
            images,
            grid.permute(0, 2, 3, 1),
            mode="bilinear",
            padding_mode="border",
            align_corners=False,
        )

    def _noise(
        self, count: int, rows: int, columns: int, generator: torch.Generator
    ) -> torch.Tensor:
        """[N, 2, rows, columns]: noise, and 0 in the two last rows and columns."""
        shape = (count, 2, rows, columns)
        if self.elastic == 0.0:
            return torch.zeros(shape)
        noise = torch.randn(shape, generator=generator).mul_(self.elastic)
        noise[:, :, -2:, :] = 0.0
        noise[:, :, :, -2:] = 0.0
        return noise

    def _draw_affine(self, corner: torch.Tensor, generator: torch.Generator) -> None:
        """Fills `corner` [N, 2, 2, 2], for x and for y, with [[a, shift], [0, b]]."""
        draws = torch.rand(6, len(corner), generator=generator).mul_(2.0).sub_(1.0)
        angle, shear = draws[0] * self.rotation, draws[1] * self.shear
        stretch = torch.exp(draws[2:4] * self.log_scale)
        cos, sin = torch.cos(angle), torch.sin(angle)
        # A is rotation times shear times stretch.
        corner[:, 0, 0, 0] = cos * stretch[0]
        corner[:, 0, 1, 1] = (cos * shear - sin) * stretch[1]
        corner[:, 1, 0, 0] = sin * stretch[0]
        corner[:, 1, 1, 1] = (sin * shear + cos) * stretch[1]
        corner[:, :, 0, 1] = draws[4:6].T * self.shift


@lru_cache(maxsize=16)
def _unit_pixels(height: int, width: int) -> torch.Tensor:
    """One pixel to the right and one down, in grid_sample's units, where an image spans 2."""
    return torch.tensor([2.0 / width, 2.0 / height]).view(1, 2, 1, 1)


@lru_cache(maxsize=16)
def _down(height: int, sigma: float | None) -> torch.Tensor:
    y = _centred(height)
    columns = (_gaussians(height, sigma), torch.ones_like(y)[:, None], y[:, None])
    return torch.cat(columns, dim=1).to(torch.float32)


@lru_cache(maxsize=16)
def _across(width: int, sigma: float | None) -> torch.Tensor:
    x = _centred(width)
    columns = (_gaussians(width, sigma), x[:, None], torch.ones_like(x)[:, None])
    return torch.cat(columns, dim=1).to(torch.float32)


def _centred(size: int) -> torch.Tensor:
    """Positions along an axis, measured from the centre of the image."""
    return torch.arange(size, dtype=torch.float64) - (size - 1) / 2


def _gaussians(size: int, sigma: float | None) -> torch.Tensor:
    """[size, nodes]: smooths noise that lives on nodes one sigma apart, up to 2 sigma outside.

    A Gaussian hides anything finer than such nodes: the field has the covariance of smoothed pixel
    noise to a few parts in ten thousand, for a quarter of the random numbers. Rows have length 1,
    so that noise of variance 1 becomes a field of variance 1 at every pixel.
    """
    if sigma is None:
        return torch.empty(size, 0, dtype=torch.float64)
    reach = (size - 1) / 2 + 2.0 * sigma
    nodes = _centred(2 * math.ceil(reach / sigma) + 1) * sigma
    weights = torch.exp(-((_centred(size)[:, None] - nodes) ** 2) / (2.0 * sigma**2))
    return F.normalize(weights, dim=1)
