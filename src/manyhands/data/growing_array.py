"""An array that grows at its end, for results whose length is known only when all is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FIRST_ENTRIES = 1 << 16


class GrowingArray:
    """One-dimensional. Grows in place, by an eighth at a time: the C library moves large memory by
    its pages instead of copying it, so that the peak is little more than the result. Not
    thread-safe."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._entries = np.empty(FIRST_ENTRIES, dtype=dtype)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def extend(self, more: npt.NDArray[Any]) -> None:
        """Append these entries."""
        needed = self._length + len(more)
        if needed > len(self._entries):
            # No view has been handed out, so nothing can point at the old memory.
            self._entries.resize(needed + needed // 8, refcheck=False)
        self._entries[self._length : needed] = more
        self._length = needed

    def finish(self) -> npt.NDArray[Any]:
        """The entries. The array must not grow after this."""
        self._entries.resize(self._length, refcheck=False)
        return self._entries
