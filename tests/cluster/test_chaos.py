"""Two hundred faults at random while clients push: nothing is lost, nothing applied twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEED = 20141006


@pytest.mark.timeout(600)
def test_the_weights_are_exactly_the_sum_of_all_pushes() -> None:
    command = [sys.executable, "-m", "benchmarks", "chaos", "--faults", "200", "--gap", "0.2"]
    ended = subprocess.run(
        [*command, "--seed", str(SEED)], cwd=ROOT, capture_output=True, text=True, timeout=580
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    found = json.loads(ended.stdout.splitlines()[-1])

    assert found["faults"] == 200
    assert found["changes_of_primary"] > 0, "no primary was ever lost"
    assert found["acknowledged_pushes"] > 200
    assert found["met"], f"{found['floats_that_differ']} floats differ; seed {SEED}"
