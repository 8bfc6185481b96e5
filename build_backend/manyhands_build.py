"""The build backend: scikit-build-core, after a look at whether this machine can compile at all.

CMake answers a missing compiler with a page of output; a person needs one sentence.
"""

from __future__ import annotations

from typing import Any

from scikit_build_core import build as _core
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from toolchain import missing_toolchain

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


def build_wheel(*args: Any, **kwargs: Any) -> str:
    _check()
    return str(_core.build_wheel(*args, **kwargs))


def build_editable(*args: Any, **kwargs: Any) -> str:
    _check()
    return str(_core.build_editable(*args, **kwargs))


def _check() -> None:
    sentence = missing_toolchain()
    if sentence is not None:
        raise SystemExit(f"\n{sentence}\n")
