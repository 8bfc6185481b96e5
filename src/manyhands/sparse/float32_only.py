"""What sparse layers ask of their numbers: float32, on the CPU, of whole sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from manyhands.errors import ConfigError, ModelError


class Float32Only:
    """A module whose kernels read float32: `half()`, `double()` and `to(bfloat16)` are refused."""

    def _apply(self, function: Callable[[torch.Tensor], torch.Tensor], *more: Any) -> nn.Module:
        moved = function(torch.empty(0))
        if moved.dtype != torch.float32 or moved.device.type not in ("cpu", "meta"):
            where = moved.dtype if moved.dtype != torch.float32 else moved.device
            raise ModelError(
                f"{type(self).__name__} can't be moved to {where}: its kernels compute in "
                "torch.float32 on the CPU. Convert the other layers alone."
            )
        module: nn.Module = super()._apply(function, *more)  # type: ignore[misc]
        return module

    def _check_float32(self, dtype: torch.dtype) -> None:
        if dtype != torch.float32:
            raise ModelError(
                f"{type(self).__name__}: the input is {dtype}; expected torch.float32 (x.float())."
            )


def whole_number(name: str, value: Any, *, least: int = 1) -> int:
    """The value, if it is a whole number of at least `least`; ConfigError if not."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} is {value!r}; expected a whole number of at least {least}.")
    return int(value)
