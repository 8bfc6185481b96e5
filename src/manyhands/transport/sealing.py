"""Whether memory that a peer sent can be mapped without fear: a file that shrinks under a mapping
ends the process that reads it (SIGBUS)."""

from __future__ import annotations

import fcntl
import os


def seal(fd: int) -> None:
    """Promise, where the system knows such promises, that this memory never shrinks."""
    if hasattr(fcntl, "F_ADD_SEALS"):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)


def never_shrinks(fd: int, size_bytes: int) -> bool:
    """Whether this memory holds so many bytes, and will for as long as it exists."""
    if not hasattr(fcntl, "F_GET_SEALS"):
        return False
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:  # not memory at all
        return False
    return bool(seals & fcntl.F_SEAL_SHRINK) and os.fstat(fd).st_size >= size_bytes
