"""What the machine can do at most: bytes copied and numbers multiplied per second."""

from __future__ import annotations

import torch

from benchmarks.harness.machine import cores
from benchmarks.harness.rounds import calls_per_second

COPY_BYTES = 1 << 28  # far more than the caches hold
SIDE = 1024
FLOPS = 2 * SIDE**3


def copied_bytes_per_s(*, seconds: float, size_bytes: int = COPY_BYTES) -> float:
    """Bytes read and written by a copy on all cores: what memory gives at most."""
    torch.set_num_threads(cores())
    here, there = (torch.zeros(size_bytes // 4) for _ in range(2))
    return 2 * size_bytes * calls_per_second(lambda: there.copy_(here), seconds=seconds)


def multiplied_flops_per_s(*, seconds: float) -> float:
    """Operations of a product of square float32 matrices on all cores."""
    torch.set_num_threads(cores())
    a, b, c = (torch.ones(SIDE, SIDE) for _ in range(3))
    return FLOPS * calls_per_second(lambda: torch.mm(a, b, out=c), seconds=seconds)
