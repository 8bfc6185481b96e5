"""What a figure was measured on: processor, cores, SIMD, versions."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path
from typing import Any


def cores() -> int:
    """Cores that this process may use, which a container can make fewer than the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def core_counts() -> list[int]:
    """1 to all cores; on a big machine the powers of two and all of them."""
    every = range(1, cores() + 1)
    return [n for n in every if cores() <= 6 or n & (n - 1) == 0 or n == cores()]


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


@cache
def machine() -> dict[str, Any]:
    """The facts that go with every result."""
    # Imported here, so that the listing is quick and works before anything is built.
    import torch

    from manyhands import kernels

    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "simd": kernels.simd(),
        "torch": torch.__version__,
        "torch_simd": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "load": [round(load, 2) for load in os.getloadavg()],
    }
