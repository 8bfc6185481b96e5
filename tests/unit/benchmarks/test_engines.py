"""Storage engines as contestants: each gives back the newest of what it was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.contestants.engines import ENGINES, TITLES, size_on_disk, snapshot_of
from benchmarks.contestants.engines_race import Load, race
from benchmarks.harness.native_program import Unavailable
from benchmarks.persistence_cost import engine_figures


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_gives_back_the_newest(tmp_path: Path, name: str) -> None:
    try:
        engine = ENGINES[name](tmp_path / name)
    except Unavailable as reason:
        pytest.skip(str(reason))
    noise = bytes(range(256)) * 16
    for version in (1, 2, 3):
        records = {number: snapshot_of(100, version, noise[number:]) for number in range(5)}
        engine.write(records)
    assert engine.read() == records
    assert size_on_disk(tmp_path / name) > 5 * 400
    engine.close()


def test_a_race_counts_what_each_engine_costs(tmp_path: Path) -> None:
    figures = engine_figures(race(Load(4, 1000), tmp_path, rounds=2))

    assert {"segments", "files", "sqlite"} <= figures["engines"].keys() <= TITLES.keys()
    ours = figures["engines"]["segments"]
    assert ours["rounds_per_s"]["median"] > 0
    assert ours["most_on_disk_per_byte"] >= 1
    assert figures["ours_times_as_fast"]["files"]["median"] > 0
