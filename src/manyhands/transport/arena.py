"""Memory shared between processes of one machine, and pickling that passes pointers into it.

Adam, section 3.2.3: what stays on a machine is passed by pointer. Tensors placed in an arena are
pickled as their offset, so a worker sees the driver's own weights and data and copies nothing. The
memory has no name in any file system: it is gone with the last process that holds it, however that
process ends.
"""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import cloudpickle
import torch
from torch.nn.utils.parametrize import is_parametrized

from manyhands import kernels
from manyhands.errors import ConfigError
from manyhands.transport.sealing import seal

_ALIGNMENT = 64  # a cache line, and the widest vector register
# An odd number of cache lines between tensors: a weight and its optimizer state, walked side by
# side, would otherwise fall into the same cache sets where their size is a power of two.
_GAP = 17 * _ALIGNMENT


def _room(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT + _GAP


def _anonymous_file(size_bytes: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("manyhands", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.truncate(fd, size_bytes)
        seal(fd)
    else:
        fd, path = tempfile.mkstemp(prefix="manyhands-")
        os.unlink(path)
        os.truncate(fd, size_bytes)
    return fd


class Arena:
    """A region of shared memory that tensors are placed in, one after another.

    Not thread-safe while placing; views may be used from anywhere. The region stays mapped as long
    as a tensor in it is alive; `close` gives up the file descriptor only.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        self.fd = fd
        self.size_bytes = size_bytes
        self._memory = kernels.map_shared(fd, size_bytes)
        self._start = torch.frombuffer(self._memory, dtype=torch.uint8, count=1).data_ptr()
        self._used = 0

    @classmethod
    def with_room_for(cls, tensors: Iterable[torch.Tensor]) -> Arena:
        """A new arena that `place` can be called on once for each of these."""
        size = sum(_room(tensor.numel() * tensor.element_size()) for tensor in tensors)
        size = max(size, _ALIGNMENT)
        try:
            return cls(_anonymous_file(size), size)
        except OSError as error:
            raise ConfigError(
                f"The run needs {size / 2**20:.0f} MiB of shared memory and the system gave none "
                f"({error.strerror}): use a smaller model or data set, or free memory."
            ) from error

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of the tensor in shared memory, with the same shape and strides."""
        dense = tensor if _is_dense(tensor) else tensor.contiguous()
        start = self._take(dense.numel() * dense.element_size())
        view = self.view(start, dense.dtype, dense.shape, dense.stride())
        return view.copy_(dense)

    def place_rows(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies of matrices of one shape in shared memory, row i of all of them side by side.

        Who visits rows here and there finds what belongs to a row in one place. Takes as much room
        as placing them one by one.
        """
        rows, width = tensors[0].shape
        stride = len(tensors) * width
        start = self._take(rows * stride * tensors[0].element_size())
        places = [start + at * width * tensors[0].element_size() for at in range(len(tensors))]
        return [
            self.view(place, tensor.dtype, (rows, width), (stride, 1)).copy_(tensor)
            for place, tensor in zip(places, tensors, strict=True)
        ]

    def place_zeros(self, count: int) -> torch.Tensor:
        """A line of zeros in shared memory; what of it nobody touches costs nothing."""
        start = self._take(4 * count)
        return self.view(start, torch.float32, (count,), (1,))

    def _take(self, size_bytes: int) -> int:
        start = self._used
        self._used = start + _room(size_bytes)
        if self._used > self.size_bytes:
            raise RuntimeError(f"arena of {self.size_bytes} bytes is full")
        return start

    def view(
        self, start: int, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int]
    ) -> torch.Tensor:
        """The tensor that lies at this offset.

        Each comes from the memory itself, not from a common tensor: views of one tensor share the
        counter by which autograd notices changes, and BatchNorm's statistics would spoil weights.
        """
        if 0 in shape:
            return torch.empty(tuple(shape), dtype=dtype)
        count = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
        flat = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=start)
        return flat.as_strided(tuple(shape), tuple(stride))

    def offset_of(self, tensor: torch.Tensor) -> int | None:
        """Where in this arena the tensor lies, or None when it is elsewhere."""
        offset = tensor.data_ptr() - self._start
        return offset if 0 <= offset < self.size_bytes and tensor.numel() else None

    def close(self) -> None:
        """Give up the file descriptor; tensors in the arena stay valid."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() or (
        tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    )


def dumps(value: object, arenas: Sequence[Arena]) -> bytes:
    """Pickle a value, by value for what the main script defined, by offset for what is shared."""
    buffer = io.BytesIO()
    _PointerPickler(buffer, arenas).dump(value)
    return buffer.getvalue()


def loads(data: bytes, arenas: Sequence[Arena]) -> Any:
    """The value, its shared tensors lying in these arenas (in the order given to `dumps`)."""
    return _PointerUnpickler(io.BytesIO(data), arenas).load()


class _PointerPickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, arenas: Sequence[Arena]) -> None:
        super().__init__(file)
        self._arenas = arenas

    def reducer_override(self, value: Any) -> Any:
        # The class that torch makes for a module with parametrizations (weight_norm) refuses to be
        # pickled, since nobody could import it elsewhere; here it travels by value.
        if isinstance(value, torch.nn.Module) and is_parametrized(value):
            return copyreg.__newobj__, (type(value),), value.__dict__  # type: ignore[attr-defined]
        return super().reducer_override(value)

    def persistent_id(self, value: object) -> tuple[Any, ...] | None:
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return None
        for number, arena in enumerate(self._arenas):
            start = arena.offset_of(value)
            if start is not None:
                trainable = value.requires_grad if isinstance(value, torch.nn.Parameter) else None
                shape, stride = tuple(value.shape), tuple(value.stride())
                return (number, start, value.dtype, shape, stride, trainable)
        return None


class _PointerUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, arenas: Sequence[Arena]) -> None:
        super().__init__(file)
        self._arenas = arenas
        self._seen: dict[tuple[Any, ...], torch.Tensor] = {}

    def persistent_load(self, pointer: tuple[Any, ...]) -> torch.Tensor:
        if pointer not in self._seen:  # one object for one pointer: tied weights stay tied
            number, start, dtype, shape, stride, trainable = pointer
            tensor = self._arenas[number].view(start, dtype, shape, stride)
            if trainable is not None:
                tensor = torch.nn.Parameter(tensor, requires_grad=trainable)
            self._seen[pointer] = tensor
        return self._seen[pointer]
