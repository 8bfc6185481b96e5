"""Can this machine build Manyhands? One sentence naming what to install when it can't.

Needs nothing but Python, so that it can be asked before anything is installed:
`python build_backend/toolchain.py` prints the sentence and ends with 1, or ends with 0.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path

_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def missing_toolchain() -> str | None:
    """What is missing to compile the native kernels, or None."""
    return _missing_compiler() or _missing_headers()


def missing_for_setup() -> str | None:
    """What is missing to make the development environment, or None."""
    if sys.version_info < (3, 10):  # noqa: UP036 - this file is what an older Python gets to see
        return f"Manyhands needs Python 3.10 or newer; this is {_VERSION}: make PYTHON=python3.11."
    if importlib.util.find_spec("ensurepip") is None:
        return (
            "This Python can't make virtual environments (no ensurepip): install the package for "
            f"it (Debian and Ubuntu: apt-get install python{_VERSION}-venv)."
        )
    return missing_toolchain()


def _missing_compiler() -> str | None:
    named = os.environ.get("CXX", "").split()
    if named and shutil.which(named[0]) is None:
        return f"The C++ compiler named by CXX, '{named[0]}', was not found: install or unset it."
    if not named and not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        return (
            "Manyhands compiles its kernels and found no C++ compiler: install one "
            "(Debian and Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; "
            "macOS: xcode-select --install)."
        )
    return None


def _missing_headers() -> str | None:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if header.exists():
        return None
    return (
        f"Manyhands compiles its kernels and found no Python headers ({header}): install them "
        f"(Debian and Ubuntu: apt-get install python{_VERSION}-dev; Fedora: dnf install "
        "python3-devel)."
    )


if __name__ == "__main__":
    sys.exit(missing_for_setup())
