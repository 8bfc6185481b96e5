"""What this machine offers a training run, as plain facts, each with advice where it is lacking.

Every check answers for itself and none raises, so that one broken part doesn't hide the others.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_GIB = 1 << 30
_PACKAGES = ("torch", "numpy", "safetensors", "cloudpickle", "rich", "tensorboard", "matplotlib")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_NUMA_NODES = Path("/sys/devices/system/node")
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One fact. `advice` says what to do about it; `fatal` means that training can't work."""

    name: str
    value: str
    advice: str = ""
    fatal: bool = False


def examine(folder: Path) -> list[Finding]:
    """Every finding about this machine, for runs that would be written to `folder`."""
    checks: list[Callable[[], Finding]] = [_python, _manyhands, *map(_package_check, _PACKAGES)]
    checks += [_native_kernels, _cores, _numa, _memory, _shared_memory, _huge_pages, _compiler]
    return [*(check() for check in checks), _disk(folder)]


def _python() -> Finding:
    system = f"{platform.system()} {platform.machine()}"
    return Finding(name="python", value=f"{platform.python_version()} on {system} ({sys.prefix})")


def own_version() -> str | None:
    """The installed version of Manyhands, or None when it is only importable."""
    try:
        return version("manyhands")
    except PackageNotFoundError:
        return None


def _manyhands() -> Finding:
    installed = own_version()
    advice = "Install it with pip install manyhands, or pip install . in its repository."
    return Finding(
        name="manyhands",
        value=installed or "not installed, only importable",
        advice="" if installed else advice,
    )


def _package_check(package: str) -> Callable[[], Finding]:
    return lambda: _package(package)


def _package(package: str) -> Finding:
    try:
        import_module(package)
        return Finding(name=package, value=version(package))
    except (ImportError, OSError) as error:
        return Finding(
            name=package,
            value=f"can't be imported: {' '.join(str(error).split())}",
            advice=f"Install it with pip install {package}.",
            fatal=True,
        )


def _native_kernels() -> Finding:
    try:
        from manyhands import _native
    except (ImportError, OSError) as error:
        return Finding(
            name="native kernels",
            value=f"can't be imported: {' '.join(str(error).split())}",
            advice="Install a C++ compiler and the Python headers, then reinstall manyhands.",
            fatal=True,
        )
    value = f"SIMD in use {_native.simd()}, available {', '.join(_native.simd_choices())}"
    slow = "This CPU has no AVX2: training works, but slowly."
    on_x86 = platform.machine().lower() in ("x86_64", "amd64")
    lacking = on_x86 and _native.simd_choices() == ["portable"]
    return Finding(name="native kernels", value=value, advice=slow if lacking else "")


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cores() -> Finding:
    present, usable, quota = os.cpu_count() or 1, usable_cores(), _cpu_quota()
    value = f"{present}, of which this process may use {usable}"
    if quota is None or quota >= usable:
        return Finding(name="cores", value=value)
    return Finding(
        name="cores",
        value=f"{value}, and the container grants {quota:g} cores' time",
        advice=f"Train with --workers {max(1, int(quota))}: more workers would be throttled.",
    )


def _cpu_quota() -> float | None:
    granted, _, period = _read(_CPU_QUOTA).partition(" ")
    return int(granted) / int(period) if granted.isdigit() and period.isdigit() else None


def _numa() -> Finding:
    """Parameter servers keep each lane's thread and memory on one node."""
    nodes = len(list(_NUMA_NODES.glob("node[0-9]*")))
    return Finding(name="NUMA nodes", value=str(nodes) if nodes else "this system doesn't say")


def _memory() -> Finding:
    try:
        import psutil
    except ImportError:
        return Finding(
            name="memory",
            value="unknown without psutil",
            advice="Install it with pip install psutil.",
        )
    memory = psutil.virtual_memory()
    value = f"{_gib(memory.total)}, {_gib(memory.available)} available"
    limit = _read(_MEMORY_LIMIT)
    if limit.isdigit() and int(limit) < memory.total:
        value += f"; the container is limited to {_gib(int(limit))}"
    low = memory.available < _GIB
    return Finding(
        name="memory", value=value, advice="Close other programs, or use fewer workers." * low
    )


def _shared_memory() -> Finding:
    name = "shared memory"
    if hasattr(os, "memfd_create"):
        size = f"; /dev/shm {_gib(shutil.disk_usage('/dev/shm').total)}" * _exists("/dev/shm")
        return Finding(name=name, value=f"anonymous files (memfd){size}")
    return Finding(name=name, value="temporary files: this system has no memfd")


def _huge_pages() -> Finding:
    name = "huge pages"
    choices = _read(_HUGE_PAGES)
    if not choices:
        return Finding(name=name, value="this system doesn't say")
    chosen = choices.partition("[")[2].partition("]")[0]
    advice = f"Large models train faster with them: echo madvise | sudo tee {_HUGE_PAGES}"
    return Finding(name=name, value=f"transparent, {chosen}", advice=advice * (chosen == "never"))


def _compiler() -> Finding:
    named = os.environ.get("CXX", "").split()[:1]
    found = next(filter(None, map(shutil.which, [*named, "c++", "g++", "clang++"])), None)
    return Finding(
        name="C++ compiler",
        value=found or "none found (only needed to install manyhands from source)",
    )


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    advice = ""
    if not os.access(folder, os.W_OK):
        advice = "This folder can't be written to: give train a --run-dir elsewhere."
    elif free < _GIB:
        advice = "Make room, or give train a --run-dir on another disk."
    return Finding(name="disk", value=f"{_gib(free)} free in {folder}", advice=advice)


def _exists(path: str) -> bool:
    return Path(path).exists()


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.1f} GiB"
