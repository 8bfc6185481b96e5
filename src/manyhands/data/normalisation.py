"""How stored pixels become the float32 numbers that a network sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from manyhands.errors import ConfigError

Statistic = float | Sequence[float]  # one number, or one per channel


@dataclass(frozen=True, slots=True)
class Normalisation:
    """`value * scale + shift`; tensors where channels differ, numbers where they don't."""

    scale: float | torch.Tensor = 1.0
    shift: float | torch.Tensor = 0.0

    def apply(self, stored: torch.Tensor) -> torch.Tensor:
        """`stored` as float32. Works in place on float32: pass a tensor that is yours."""
        values = stored.to(torch.float32)
        if isinstance(self.scale, torch.Tensor) or self.scale != 1.0:
            values.mul_(self.scale)
        if isinstance(self.shift, torch.Tensor) or self.shift != 0.0:
            values.add_(self.shift)
        return values


def normalisation(
    *, highest: float, mean: Statistic | None, std: Statistic | None, channels: int | None
) -> Normalisation:
    """Brings 0..`highest` to 0..1, then subtracts `mean` and divides by `std` (both of 0..1).

    `channels` is None for data without channels, for which only plain numbers are accepted.
    """
    means = _per_channel("mean", 0.0 if mean is None else mean, channels)
    stds = _per_channel("std", 1.0 if std is None else std, channels)
    if not np.all(stds > 0.0):
        raise ConfigError(f"std is {std}: expected numbers above 0.")
    return Normalisation(_broadcast(1.0 / (highest * stds)), _broadcast(-means / stds))


def _per_channel(name: str, statistic: Statistic, channels: int | None) -> np.ndarray:
    values = np.asarray(statistic, dtype=np.float64)
    if values.ndim == 1 and values.size == 1:
        values = values[0]
    if values.ndim > 0 and values.shape != (channels,):
        expected = "one number" if channels is None else f"one number or {channels}"
        raise ConfigError(f"{name} is {statistic}: expected {expected} for this data.")
    if not np.all(np.isfinite(values)):
        raise ConfigError(f"{name} is {statistic}: expected finite numbers.")
    return np.asarray(values)


def _broadcast(values: np.ndarray) -> float | torch.Tensor:
    if values.ndim == 0:
        return float(values)
    return torch.from_numpy(values.astype(np.float32)).view(-1, 1, 1)
