"""Augmentation by batch: every image of a batch gets its own random change (Adam, section 3.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch

from manyhands.data.warp import Warp
from manyhands.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Augment:
    """How far images may be changed at random; every default leaves them alone.

    Rotation, scale, shear and shift are drawn evenly from plus to minus the given value. What comes
    into the picture from outside repeats its border. Thread-safe.
    """

    rotation_degrees: float = 0.0
    log_scale: float = 0.0  # of each axis: 0.1 is 10% smaller to 10% larger
    shear: float = 0.0
    shift_pixels: float = 0.0
    elastic_pixels: float = 0.0  # standard deviation of each pixel's displacement, along each axis
    elastic_sigma: float = 4.0  # over how many pixels neighbours move together
    reflect: bool = False  # left and right change places, in half of the images
    crop_padding: int = 0  # whole pixels by which a crop may lie off centre

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_setting(field.name, getattr(self, field.name))
        if self.elastic_sigma < 0.5:
            raise ConfigError(f"elastic_sigma is {self.elastic_sigma}: expected 0.5 or more.")
        if self.rotation_degrees > 180.0:
            raise ConfigError(f"rotation_degrees is {self.rotation_degrees}: expected 0 to 180.")

    @classmethod
    def digits(cls) -> Augment:
        """What suits handwriting: small turns, stretches and shifts, and elastic bending."""
        return cls(
            rotation_degrees=10.0,
            log_scale=0.1,
            shear=0.1,
            shift_pixels=2.0,
            elastic_pixels=0.5,
            elastic_sigma=4.0,
        )

    @classmethod
    def natural(cls) -> Augment:
        """What suits small photographs: reflection and crops up to 4 pixels off centre."""
        return cls(reflect=True, crop_padding=4)

    def apply(self, images: torch.Tensor, *, seed: int) -> torch.Tensor:
        """New float32 images [N, C, H, W]; the same `seed` changes them in the same way."""
        generator = torch.Generator().manual_seed(seed)
        if self._warps():
            images = self._warp().apply(images, generator)
        if self.reflect or self.crop_padding:
            images = self._crop(images, generator)
        return images

    def _warps(self) -> bool:
        ranges = (self.rotation_degrees, self.log_scale, self.shear, self.shift_pixels)
        return any(ranges) or self.elastic_pixels > 0.0

    def _warp(self) -> Warp:
        return Warp(
            rotation=math.radians(self.rotation_degrees),
            log_scale=self.log_scale,
            shear=self.shear,
            shift=self.shift_pixels,
            elastic=self.elastic_pixels,
            sigma=self.elastic_sigma,
        )

    def _crop(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Reflection and crop at once: each output pixel names the input pixel it copies."""
        count, channels, height, width = images.shape
        pad = self.crop_padding
        offsets = torch.randint(-pad, pad + 1, (2, count, 1), generator=generator)
        rows = (torch.arange(height) + offsets[0]).clamp_(0, height - 1)
        columns = (torch.arange(width) + offsets[1]).clamp_(0, width - 1)
        if self.reflect:
            flipped = torch.rand(count, 1, generator=generator) < 0.5
            columns = torch.where(flipped, columns.flip(1), columns)
        pixels = (rows[:, :, None] * width + columns[:, None, :]).view(count, 1, height * width)
        taken = images.flatten(2).gather(2, pixels.expand(-1, channels, -1))
        return taken.view(images.shape)


def _check_setting(name: str, value: object) -> None:
    if name == "reflect":
        if not isinstance(value, bool):
            raise ConfigError(f"reflect is {value!r}: expected True or False.")
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{name} is {value!r}: expected a number.")
    elif not 0.0 <= value < math.inf:
        raise ConfigError(f"{name} is {value}: expected a finite number, 0 or more.")
    elif name == "crop_padding" and not isinstance(value, int):
        raise ConfigError(f"crop_padding is {value}: expected a whole number of pixels.")
