"""Processes that end with the benchmark, also when it is killed."""

from __future__ import annotations

import ctypes
import signal

_libc = ctypes.CDLL(None)
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def die_with_the_parent() -> None:
    """Have the kernel kill this process when its parent ends.

    One that is stopped or busy would not notice by itself that nobody asks any more.
    """
    if hasattr(_libc, "prctl"):
        _libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
