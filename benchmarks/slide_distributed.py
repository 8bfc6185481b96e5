"""Sparse layers on two replicas: bytes per sample against dense deltas, P@1 at equal samples.

Two replicas train Debian's packages through one parameter server, over TCP: the rows that a batch
touched are pushed, and the rows that others changed are fetched. Beside them the same run with all
parameters pushed as dense deltas, for a part of the samples, because it takes so long, and one
process alone for the P@1. The aim is a tenth of the bytes, and P@1 within one point.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

import manyhands as mh
from benchmarks.contestants.wide_course import (
    PACKAGES,
    WideCourse,
    WideSet,
    precision_at_1,
    some_of,
)
from benchmarks.contestants.wide_training import job_of
from benchmarks.harness.machine import cores
from benchmarks.harness.report import picture, print_table
from benchmarks.harness.rounds import progress
from manyhands.telemetry.events import ClusterProgress, Event

ROWS, DENSE, ALONE = "rows", "dense", "alone"
TITLES = {
    ALONE: "one process",
    ROWS: "two replicas, rows",
    DENSE: "two replicas, dense deltas",
}
AIM_TIMES, AIM_POINTS = 10.0, 1.0


@dataclass(frozen=True)
class Plan:
    """What is trained, and for how long."""

    course: WideCourse
    epochs: int
    dense_samples: int  # of one epoch
    push_every: int = 1
    fetch_every: int = 1


QUICK = Plan(
    WideCourse(PACKAGES, train_samples=6_000, test_samples=1_000), epochs=2, dense_samples=1_024
)
FULL = Plan(WideCourse(PACKAGES, test_samples=4_000), epochs=8, dense_samples=10_240)


@dataclass(frozen=True)
class Run:
    """One run: P@1 after each epoch, and what travelled."""

    name: str
    samples: int
    seconds: float
    precision: tuple[float, ...]
    pushed_bytes: int
    pulled_bytes: int

    @property
    def bytes_per_sample(self) -> float:
        return (self.pushed_bytes + self.pulled_bytes) / self.samples


def strategy(name: str, plan: Plan) -> mh.Strategy:
    if name == ALONE:
        return mh.Hogwild(workers=1)
    return mh.Downpour(
        replicas=2,
        servers=1,
        workers=1,
        push_every=plan.push_every,
        fetch_every=plan.fetch_every,
        transport="tcp",
        epoch_share=1.0,  # an epoch is over when all of its samples are trained
        push="weights" if name == DENSE else "gradients",
    )


def train(name: str, plan: Plan, samples: WideSet) -> Run:
    epochs = plan.epochs
    if name == DENSE:
        samples, epochs = replace(samples, train=some_of(samples.train, plan.dense_samples)), 1
    progress(f"{TITLES[name]} ...")
    heard: list[ClusterProgress] = []

    def hear(event: Event) -> None:
        if isinstance(event, ClusterProgress):
            heard.append(event)

    job = replace(job_of(plan.course, samples, hear), epochs=epochs, schedule=falling)
    precision, seconds, trained = [], 0.0, 0
    with strategy(name, plan).start(job) as session:
        for epoch in range(epochs):
            began = time.monotonic()
            trained += session.train_epoch(epoch).samples
            seconds += time.monotonic() - began
            precision.append(precision_at_1(list(job.model.parameters()), samples.test))
    last = heard[-1] if heard else None
    return Run(
        name,
        last.samples_seen if last else trained,
        seconds,
        tuple(precision),
        last.pushed_bytes if last else 0,
        last.pulled_bytes if last else 0,
    )


def falling(step: int, total_steps: int) -> float:
    """The rate as a share of the first one: down to nothing along a line."""
    return 1.0 - step / total_steps


def times_fewer(runs: dict[str, Run]) -> float:
    return runs[DENSE].bytes_per_sample / runs[ROWS].bytes_per_sample


def points_behind(runs: dict[str, Run]) -> float:
    return runs[ALONE].precision[-1] - runs[ROWS].precision[-1]


def figures(runs: dict[str, Run]) -> dict[str, Any]:
    return {
        "runs": {
            name: {
                "samples": run.samples,
                "samples_per_s": round(run.samples / run.seconds, 1),
                "p@1": [round(value, 2) for value in run.precision],
                "pushed_bytes_per_sample": round(run.pushed_bytes / run.samples),
                "pulled_bytes_per_sample": round(run.pulled_bytes / run.samples),
            }
            for name, run in runs.items()
        },
        "times_fewer_bytes": round(times_fewer(runs), 2),
        "points_behind_one_process": round(points_behind(runs), 2),
        "aims": {"times_fewer_bytes": AIM_TIMES, "points_behind_one_process": AIM_POINTS},
        "met": {
            "times_fewer_bytes": times_fewer(runs) >= AIM_TIMES,
            "points_behind_one_process": points_behind(runs) <= AIM_POINTS,
        },
    }


def row(run: Run) -> list[str]:
    return [
        TITLES[run.name],
        f"{run.samples:,}",
        f"{run.samples / run.seconds:,.0f}",
        f"{run.pushed_bytes / run.samples / 1e3:,.1f}",
        f"{run.pulled_bytes / run.samples / 1e3:,.1f}",
        f"{run.precision[-1]:.2f}",
    ]


def draw(runs: dict[str, Run]) -> None:
    with picture("slide_distributed", 2) as (weights, curves):
        compared = (DENSE, ROWS)
        heights = [runs[name].bytes_per_sample / 1e3 for name in compared]
        weights.bar([TITLES[name] for name in compared], heights)
        weights.set(ylabel="KB per sample, pushed and fetched", yscale="log")
        for name in (ALONE, ROWS):
            run = runs[name]
            curves.plot(range(1, len(run.precision) + 1), run.precision, ".-", label=TITLES[name])
        curves.set(xlabel="epoch", ylabel="P@1, %", title="Debian's packages")
        curves.legend()


def run(options: argparse.Namespace) -> dict[str, Any]:
    plan = QUICK if options.quick else FULL
    torch.set_num_threads(cores())
    torch.set_flush_denormal(True)
    samples = plan.course.samples()
    runs = {name: train(name, plan, samples) for name in TITLES}
    print_table(
        f"Debian's packages on two replicas, batch {plan.course.batch}, "
        f"push_every {plan.push_every}, fetch_every {plan.fetch_every}",
        ["", "samples", "samples/s", "pushed, KB/sample", "fetched, KB/sample", "P@1, %"],
        [row(run) for run in runs.values()],
    )
    print(
        f"{times_fewer(runs):.1f} times fewer bytes; {points_behind(runs):+.2f} points behind one."
    )
    draw(runs)
    return {"push_every": plan.push_every, "fetch_every": plan.fetch_every, **figures(runs)}
