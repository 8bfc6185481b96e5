"""Finds the pictures of a folder with one sub-folder per class, and decodes one of them."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

from manyhands.errors import DataError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm"})
# What Pillow raises for files that are cut off, damaged or no images at all.
UNREADABLE = (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError)


@dataclass(frozen=True, slots=True)
class Listing:
    """What a folder holds: class names in order, and each picture's path and class number."""

    classes: tuple[str, ...]
    paths: tuple[str, ...]
    labels: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What every picture is brought to."""

    grey: bool
    height: int
    width: int
    resize: bool  # False: a picture of another size is refused

    @property
    def shape(self) -> tuple[int, int, int]:
        return (1 if self.grey else 3, self.height, self.width)


def list_classes(folder: Path) -> Listing:
    """Classes and pictures in the order of their names; hidden files are passed over."""
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not a folder: expected one that has a sub-folder of images per class."
        )
    classes = sorted(entry.name for entry in folder.iterdir() if _is_class(entry))
    if not classes:
        raise DataError(f"{folder} has no sub-folders: expected one per class, holding its images.")
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = _list_pictures(folder / name)
        if not found:
            raise DataError(
                f"{folder / name} holds no images ({', '.join(sorted(SUFFIXES))}): "
                "add some or remove the folder."
            )
        paths += found
        labels += [label] * len(found)
    return Listing(tuple(classes), tuple(paths), tuple(labels))


def picture_size(path: str) -> tuple[int, int]:
    """Height and width of a picture as it is shown."""
    picture = _open(path, grey=True)
    return picture.height, picture.width


def decode(path: str, form: Form) -> torch.Tensor:
    """One picture as bytes [C, H, W], scaled to cover the wanted size and cropped at its centre."""
    picture = _open(path, grey=form.grey)
    if (picture.height, picture.width) != (form.height, form.width):
        if not form.resize:
            raise DataError(
                f"{path} is {picture.height} x {picture.width} pixels and the first image "
                f"{form.height} x {form.width}: pass size= to bring all images to one size."
            )
        picture = ImageOps.fit(picture, (form.width, form.height), Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(picture).reshape(form.height, form.width, -1))
    return pixels.permute(2, 0, 1).contiguous()


def _open(path: str, *, grey: bool) -> Image.Image:
    try:
        with Image.open(path) as opened:
            picture = _to_bytes(ImageOps.exif_transpose(opened))
            return picture.convert("L" if grey else "RGB")
    except UNREADABLE as error:
        raise DataError(
            f"{path} can't be read as an image ({error}): remove or replace it."
        ) from None


def _to_bytes(picture: Image.Image) -> Image.Image:
    """16-bit grey brought to 8 bits: Pillow's own conversion clips instead of scaling."""
    if not picture.mode.startswith("I"):
        return picture
    return Image.fromarray((np.asarray(picture).clip(0, 65535) >> 8).astype(np.uint8))


def _is_class(entry: Path) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


def _list_pictures(folder: Path) -> list[str]:
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES:
                found.append(os.path.join(parent, name))
    return found
