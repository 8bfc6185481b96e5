"""A race of storage engines under the load of write-back: the same chunks rewritten, for hours.

Everybody writes a round of records in turn. Beside the rate it is counted what each costs: time of
the processors, which training wants; bytes that reach the device, which wear it out; room.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.contestants.engines import ENGINES, Engine, Round, size_on_disk, snapshot_of
from benchmarks.harness.native_program import Unavailable
from benchmarks.harness.rounds import Measure, Rounds, alternate, progress

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Load:
    """What a round is: so many chunks of so many floats."""

    chunks: int
    floats: int

    @property
    def bytes(self) -> int:
        return self.chunks * self.floats * FLOAT_BYTES


@dataclass
class Costs:
    """Of one engine, round by round."""

    cpu_s: list[float] = field(default_factory=list)
    device_bytes: list[int] = field(default_factory=list)
    most_on_disk: int = 0


@dataclass
class EnginesMeasured:
    """Bytes written per second by engine, and what it cost."""

    load: Load
    rounds: Rounds
    read: Rounds
    costs: dict[str, Costs]

    def figures(self, name: str) -> dict[str, Any]:
        costs, size = self.costs[name], self.load.bytes
        return {
            "rounds_per_s": self.rounds.rate(name).figures(3),
            "mb_per_s": round(self.rounds.rate(name).median * size / 1e6, 1),
            "read_mb_per_s": round(self.read.rate(name).median * size / 1e6, 1),
            "cpu_ms_per_mb": round(median(costs.cpu_s) * 1e3 / (size / 1e6), 3),
            "device_bytes_per_byte": round(sum(costs.device_bytes) / len(costs.cpu_s) / size, 2),
            "most_on_disk_per_byte": round(costs.most_on_disk / size, 2),
        }


def race(load: Load, folder: Path, *, rounds: int) -> EnginesMeasured:
    """Let every engine that is installed here rewrite the load so many times."""
    noise = np.random.default_rng(0).standard_normal(load.floats, np.float32).tobytes()
    costs: dict[str, Costs] = defaultdict(Costs)
    versions: dict[str, int] = defaultdict(int)
    with ExitStack() as ends:
        engines = _engines(ends, folder)

        def writing(name: str) -> Measure:
            def one_round() -> float:
                versions[name] += 1
                records = _records(load, versions[name], noise)
                began, cpu, device = time.perf_counter(), time.process_time(), _device_bytes()
                engines[name].write(records)
                took = time.perf_counter() - began
                cost = costs[name]
                cost.cpu_s.append(time.process_time() - cpu)
                cost.device_bytes.append(_device_bytes() - device)
                cost.most_on_disk = max(cost.most_on_disk, size_on_disk(folder / name))
                return 1 / took

            return one_round

        def reading(name: str) -> Measure:
            def one_round() -> float:
                began = time.perf_counter()
                found = engines[name].read()
                took = time.perf_counter() - began
                if found != _records(load, versions[name], noise):
                    raise RuntimeError(f"{name} did not give back what was written")
                return 1 / took

            return one_round

        written = alternate({name: writing(name) for name in engines}, rounds=rounds)
        read = alternate({name: reading(name) for name in engines}, rounds=min(rounds, 3))
    return EnginesMeasured(load, written, read, dict(costs))


def _engines(ends: ExitStack, folder: Path) -> dict[str, Engine]:
    present: dict[str, Engine] = {}
    for name, make in ENGINES.items():
        try:
            present[name] = make(folder / name)
        except Unavailable as reason:
            progress(f"Without {name}: {reason}.")
        else:
            ends.callback(present[name].close)
    return present


def _records(load: Load, version: int, noise: bytes) -> Round:
    return {number: snapshot_of(load.floats, version, noise) for number in range(load.chunks)}


def _device_bytes() -> int:
    """What this process has caused to be written to disks, by the kernel's count."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return int(dict(line.split(": ") for line in lines)["write_bytes"])
