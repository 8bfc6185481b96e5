"""Turns the arrays that users hold into checked CPU tensors, or says why it can't."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from manyhands.errors import ConfigError, DataError

Layout = Literal["auto", "plain", "NHW", "NCHW", "NHWC"]
LAYOUTS = ("auto", "plain", "NHW", "NCHW", "NHWC")
CHANNELS = (1, 3, 4)  # grey, RGB, RGBA: what a channels-last image may end in


def features(x: Any, *, layout: Layout = "auto") -> torch.Tensor:
    """`x` as samples: uint8 stays, other integers become int64, everything else finite float32."""
    raw = _to_tensor("x", x)
    if raw.dim() < 2:
        raise DataError(
            f"x has shape {_shape(raw)}: expected one row per sample; "
            "use x[:, None] for samples of one number."
        )
    if raw.dtype == torch.bool:
        raw = raw.to(torch.float32)
    elif raw.dtype != torch.uint8:
        raw = _to_standard_dtype(raw)
    _check_finite("x", raw)
    return _arrange(raw, layout).contiguous()


def labels(y: Any, *, samples: int) -> torch.Tensor:
    """`y` as targets: integers become int64 classes, real numbers finite float32 values."""
    targets = _to_standard_dtype(_to_tensor("y", y))
    if len(targets) != samples:
        raise DataError(
            f"x has {samples} samples and y has {len(targets)}: expected one label for each sample."
        )
    if targets.dtype == torch.int64 and targets.dim() == 2 and targets.shape[1] == 1:
        raise DataError(
            f"y holds class labels in shape {_shape(targets)}: expected ({samples},); pass y[:, 0]."
        )
    _check_finite("y", targets)
    return targets.contiguous()


def _to_tensor(name: str, value: Any) -> torch.Tensor:
    """`value` on the CPU, without copying where that is possible."""
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
        value = _stack(name, value)
    tensor = _plain(name, value) if isinstance(value, torch.Tensor) else _from_array(name, value)
    if tensor.dim() == 0:
        raise DataError(f"{name} is a single number: expected an array with one row per sample.")
    if tensor.numel() == 0:
        raise DataError(f"{name} has shape {_shape(tensor)}: expected at least one value.")
    return tensor


def _stack(name: str, tensors: list[torch.Tensor] | tuple[torch.Tensor, ...]) -> torch.Tensor:
    try:
        return torch.stack(list(tensors))
    except (RuntimeError, TypeError) as error:
        raise DataError(
            f"{name} is a {type(tensors).__name__} of tensors that can't be stacked ({error}): "
            "expected tensors of one shape and dtype."
        ) from None


def _plain(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided or tensor.is_complex() or tensor.is_quantized:
        raise DataError(
            f"{name} is a tensor of {tensor.dtype} in {tensor.layout} layout: "
            "expected a dense tensor of real numbers."
        )
    if tensor.device.type == "meta":
        raise DataError(f"{name} is on the meta device: expected a tensor that holds values.")
    return tensor.detach().cpu()


def _from_array(name: str, value: Any) -> torch.Tensor:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(f"{name} is not a rectangular array: {error}.") from None
    if array.dtype.kind not in "buif":
        raise DataError(
            f"{name} is {_described(value)} of dtype {array.dtype}: expected an array of numbers."
        )
    return _borrow(name, array)


def _borrow(name: str, array: npt.NDArray[Any]) -> torch.Tensor:
    """The array's memory as a tensor, after the few conversions that torch can't do itself."""
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "f" and size > 8:
        array = array.astype(np.float64)
    if kind == "u" and size > 1:
        if array.size and array.max() > np.iinfo(np.int64).max:
            raise DataError(f"{name} holds {array.max()}: expected integers that fit in 64 bits.")
        array = array.astype(np.int64)
    array = np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
    with warnings.catch_warnings():
        # torch warns of read-only arrays; a source never writes to what it was given.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _to_standard_dtype(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)


def _check_finite(name: str, tensor: torch.Tensor) -> None:
    # The sum is not finite when any value is not; only then are samples looked at one by one.
    if not tensor.is_floating_point() or torch.isfinite(tensor.sum()):
        return
    good = torch.isfinite(tensor.flatten(1) if tensor.dim() > 1 else tensor[:, None]).all(dim=1)
    bad = torch.nonzero(~good).flatten()
    if len(bad):
        raise DataError(
            f"{name} holds NaN or infinity (as float32) in {len(bad)} of {len(tensor)} samples, "
            f"first in sample {int(bad[0])}: remove or fill them."
        )


def _arrange(x: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Images as [N, C, H, W]; everything else as it is."""
    if layout not in LAYOUTS:
        raise ConfigError(f"layout is {layout!r}: expected one of {', '.join(LAYOUTS)}.")
    chosen = _guess_layout(x) if layout == "auto" else layout
    if chosen == "plain":
        return x
    if x.dim() != len(chosen):
        raise DataError(f"x has shape {_shape(x)}, which can't be read as layout {chosen}.")
    if chosen == "NHW":
        return x[:, None]
    return x.permute(0, 3, 1, 2) if chosen == "NHWC" else x


def _guess_layout(x: torch.Tensor) -> Layout:
    """Only bytes are taken for pictures: real numbers in three dimensions may be sequences."""
    if x.dtype != torch.uint8 or x.dim() not in (3, 4):
        return "plain"
    if x.dim() == 3:
        return "NHW"
    first, last = x.shape[1] in CHANNELS, x.shape[3] in CHANNELS
    if first and last:
        raise DataError(
            f"x has shape {_shape(x)}, whose channels could be first or last: "
            "pass layout='NCHW' or layout='NHWC'."
        )
    return "NHWC" if last else "NCHW"


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _described(value: Any) -> str:
    return "an array" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
