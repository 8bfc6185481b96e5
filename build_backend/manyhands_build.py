"""The build backend: scikit-build-core, after a look at whether this machine can compile at all.

CMake answers a missing compiler with a page of output. A person needs one sentence with the
name of the package to install, so the question is asked here first.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from scikit_build_core import build as _core
from scikit_build_core.build import (
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def missing_toolchain() -> str | None:
    """One sentence naming what to install, or None when the native kernels can be built."""
    named = os.environ.get("CXX", "").split()
    if named and shutil.which(named[0]) is None:
        return (
            f"The C++ compiler named by CXX, '{named[0]}', was not found: "
            "install it or unset CXX."
        )
    if not named and not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        return (
            "Manyhands compiles its kernels and found no C++ compiler: install one "
            "(Debian and Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; "
            "macOS: xcode-select --install)."
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return (
            f"Manyhands compiles its kernels and found no Python headers ({header}): install them "
            f"(Debian and Ubuntu: apt-get install python{version}-dev; "
            f"Fedora: dnf install python3-devel)."
        )
    return None


def _check() -> None:
    sentence = missing_toolchain()
    if sentence is not None:
        raise SystemExit(f"\n{sentence}\n")


def build_wheel(*args: Any, **kwargs: Any) -> str:
    _check()
    return _core.build_wheel(*args, **kwargs)


def build_editable(*args: Any, **kwargs: Any) -> str:
    _check()
    return _core.build_editable(*args, **kwargs)


def build_sdist(*args: Any, **kwargs: Any) -> str:
    return _core.build_sdist(*args, **kwargs)
