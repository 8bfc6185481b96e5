"""Every kernel test runs once for each instruction set that the machine has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from manyhands import _native


@pytest.fixture(params=_native.simd_choices())
def simd(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _native.simd()
    _native.use_simd(request.param)
    yield request.param
    _native.use_simd(before)
