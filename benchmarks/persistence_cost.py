"""What delayed persistence costs: updates with write-back on against off, engines, a resume.

1. One server whose every lane is kept busy with pushes, writing back or not, in turns (aim: within
   a tenth), and how many bytes reach the disk for an update. A quick run writes back twice as often
   as the default. Others at work on the cores weigh on whoever has more threads: measure alone.
2. Storage engines under this load: the same chunks rewritten over and over, 1 MB each, or thousands
   of small ones. TensorStore is no dependency of Manyhands; it takes part where it is installed
   (`pip install manyhands[bench]`).
3. A model read back from the store, against `torch.load` of the same, from memory and from disk.

Everything is written below `--directory`, which must be on the disk that is meant.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.contestants.engines import TITLES, installed_mb
from benchmarks.contestants.engines_race import EnginesMeasured, Load, race
from benchmarks.contestants.stored_model import OnDisk
from benchmarks.contestants.writing_node import WritingNode
from benchmarks.harness.report import print_table, with_spread
from benchmarks.harness.rounds import Rounds, Spread, alternate, progress

MB = 1 << 20
WITH, WITHOUT = "write-back", "none"
AIM = 0.9  # of the updates without write-back


@dataclass(frozen=True)
class Plan:
    """What a run measures, and for how long."""

    models_mb: tuple[int, ...]
    every_s: float
    turn_s: float
    rounds: int
    engine_loads: tuple[Load, ...]
    engine_rounds: int
    resume_bytes: int
    resume_rounds: int


QUICK = Plan(
    models_mb=(64,),
    every_s=2.5,
    turn_s=2.5,
    rounds=3,
    engine_loads=(Load(16, MB // 4), Load(200, 100)),
    engine_rounds=4,
    resume_bytes=128 * MB,
    resume_rounds=3,
)
FULL = Plan(
    models_mb=(64, 256),
    every_s=5.0,
    turn_s=10.0,
    rounds=5,
    engine_loads=(Load(64, MB // 4), Load(2000, 100)),
    engine_rounds=10,
    resume_bytes=1024 * MB,
    resume_rounds=5,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--directory", type=Path, help="where to write; a temporary folder")


# --- updates with and without write-back


def cost_of(model_mb: int, plan: Plan, folder: Path) -> dict[str, Any]:
    progress(f"Updates of a model of {model_mb} MB, with and without write-back ...")
    with WritingNode(model_mb, folder / f"written-{model_mb}", plan.every_s) as node:
        node.push_without(plan.turn_s / 4)
        rounds = alternate(
            {
                WITH: lambda: node.push_with(plan.turn_s),
                WITHOUT: lambda: node.push_without(plan.turn_s),
            },
            rounds=plan.rounds,
        )
        written = sum(report.written_bytes for report in node.reports)
        records = sum(report.records for report in node.reports)
        longest_s = max(report.round_s for report in node.reports)
        return _cost_figures(model_mb, plan, rounds, node.updates, written, records, longest_s)


def _cost_figures(
    model_mb: int,
    plan: Plan,
    rounds: Rounds,
    updates: int,
    written: int,
    records: int,
    longest_s: float,
) -> dict[str, Any]:
    ratio = rounds.ratio(WITH, WITHOUT)
    return {
        "model_mb": model_mb,
        "write_back_s": plan.every_s,
        "updates_per_s": {name: rounds.rate(name).figures(0) for name in rounds.rates},
        "ratio": ratio.figures(),
        "aim": AIM,
        "met": ratio.median >= AIM,
        "updates_per_record": round(updates / max(1, records), 1),
        "written_bytes_per_update": round(written / updates),
        "pushed_bytes_per_update": MB,
        "written_mb_per_s": round(written / (plan.turn_s * plan.rounds) / 1e6, 1),
        "longest_round_s": round(longest_s, 2),
    }


def print_costs(costs: list[dict[str, Any]]) -> None:
    def spread(figures: dict[str, float], form: str) -> str:
        return with_spread(Spread(figures["median"], figures["low"], figures["high"]), form)

    print_table(
        "Updates of 1 MB chunks per second, written back or not",
        ["model", "every", "with", "without", "ratio", "updates a record", "bytes an update"],
        [
            [
                f"{cost['model_mb']} MB",
                f"{cost['write_back_s']:g} s",
                spread(cost["updates_per_s"][WITH], ",.0f"),
                spread(cost["updates_per_s"][WITHOUT], ",.0f"),
                spread(cost["ratio"], ".3f"),
                f"{cost['updates_per_record']:,}",
                f"{cost['written_bytes_per_update']:,}",
            ]
            for cost in costs
        ],
    )


# --- engines


def engines(plan: Plan, folder: Path) -> list[EnginesMeasured]:
    measured = []
    for number, load in enumerate(plan.engine_loads):
        progress(f"Engines, {load.chunks} chunks of {load.floats * 4:,} bytes ...")
        (folder / f"engines-{number}").mkdir()
        measured.append(race(load, folder / f"engines-{number}", rounds=plan.engine_rounds))
    return measured


def print_engines(measured: EnginesMeasured) -> None:
    load = measured.load
    rows = []
    for name in measured.rounds.rates:
        figures, seconds = measured.figures(name), measured.rounds.rate(name)
        times = Spread(1e3 / seconds.median, 1e3 / seconds.high, 1e3 / seconds.low)
        rows.append(
            [
                TITLES[name],
                with_spread(times, ",.0f"),
                f"{figures['mb_per_s']:,}",
                f"{figures['read_mb_per_s']:,}",
                f"{figures['cpu_ms_per_mb']:,}",
                f"{figures['device_bytes_per_byte']}",
                f"{figures['most_on_disk_per_byte']}",
            ]
        )
    print_table(
        f"Engines: {load.chunks} chunks of {load.floats * 4:,} bytes, rewritten "
        f"{len(measured.rounds.rates['segments'])} times",
        [
            "engine",
            "ms a round",
            "MB/s",
            "read MB/s",
            "CPU ms/MB",
            "to the device, times",
            "room, times",
        ],
        rows,
    )


def engine_figures(measured: EnginesMeasured) -> dict[str, Any]:
    return {
        "chunks": measured.load.chunks,
        "chunk_bytes": measured.load.floats * 4,
        "rewrites": len(measured.rounds.rates["segments"]),
        "engines": {name: measured.figures(name) for name in measured.rounds.rates},
        "ours_times_as_fast": {
            name: measured.rounds.ratio("segments", name).figures(2)
            for name in measured.rounds.rates
            if name != "segments"
        },
    }


# --- resume


def resume(plan: Plan, folder: Path) -> dict[str, Any]:
    progress(f"A resume of {plan.resume_bytes // MB} MB ...")
    (folder / "resume").mkdir()
    model = OnDisk.write(folder / "resume", plan.resume_bytes, servers=2)
    model.check()
    found: dict[str, Any] = {"bytes": model.bytes}
    rows = []
    for name, cold in (("from memory", False), ("from disk", True)):
        rounds = model.race(cold=cold, rounds=plan.resume_rounds)
        seconds = {who: Spread.of(1 / rate for rate in rounds.rates[who]) for who in rounds.rates}
        ratio = rounds.ratio("ours", "torch")
        found[name.replace(" ", "_")] = {
            "seconds": {who: spread.figures(3) for who, spread in seconds.items()},
            "times_as_fast": ratio.figures(2),
        }
        cells = [with_spread(seconds[who], ".2f") for who in ("ours", "torch")]
        rows.append([name, *cells, with_spread(ratio, ".2f")])
    print_table(
        f"A model of {model.bytes // MB} MB read back, in seconds",
        ["", "our store", "torch.load", "times as fast"],
        rows,
    )
    found["onto_3_servers_s"] = round(model.seconds_onto_servers(3), 2)
    print(f"From the store onto three servers, over loopback: {found['onto_3_servers_s']} s.")
    return found


def run(options: argparse.Namespace) -> dict[str, Any]:
    plan = QUICK if options.quick else FULL
    with TemporaryDirectory(dir=options.directory, prefix="persistence_cost-") as place:
        folder = Path(place)
        costs = [cost_of(model_mb, plan, folder) for model_mb in plan.models_mb]
        measured = engines(plan, folder)
        print_costs(costs)
        for one in measured:
            print_engines(one)
        resumed = resume(plan, folder)
    return {
        "cost": costs,
        "engines": [engine_figures(one) for one in measured],
        "tensorstore_installed_mb": round(installed_mb("tensorstore"), 1),
        "resume": resumed,
    }
