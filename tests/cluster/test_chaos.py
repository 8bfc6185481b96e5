"""Two hundred faults at random while clients push: nothing is lost, nothing applied twice."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:  # `benchmarks` is a folder beside the package
    sys.path.insert(0, ROOT)

from benchmarks.chaos import Plan, endure  # noqa: E402

SEED = 20141006


@pytest.mark.timeout(600)
def test_the_weights_are_exactly_the_sum_of_all_pushes() -> None:
    found = endure(Plan(faults=200, gap_s=0.2), SEED)

    assert sum(found.faults.values()) == 200
    assert found.leases > 0, "no primary was ever lost"
    assert found.pushes > 200
    assert found.exact, f"{found.wrong} floats differ; seed {found.seed}"
