"""Sparse layers on two replicas: bytes per sample against dense deltas, P@1 at equal samples.

Two replicas train Debian's packages through one parameter server, over TCP: the rows that a batch
touched are pushed, and the rows that others changed are fetched. Beside them the same run with all
parameters pushed as dense deltas, for a part of the samples, because it takes so long, and one
process alone for the P@1, which should be within one point. The wider the layer, the more rows a
batch leaves alone: a wider synthetic set is weighed as well. The first fetch of all weights is not
counted. Dense deltas that wait for each other are sent as one, so that they weigh less per sample
and are later; what they would weigh at the pace of the rows is given as well.
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
    SYNTHETIC,
    WideCourse,
    WideSet,
    precision_at_1,
    some_of,
)
from benchmarks.contestants.wide_training import job_of
from benchmarks.harness.machine import cores
from benchmarks.harness.report import picture, print_table
from benchmarks.harness.rounds import progress
from manyhands.strategies.downpour_driver.session import DownpourSession
from manyhands.strategies.strategy import Session

ROWS, DENSE, ALONE = "rows", "dense", "alone"
TITLES = {
    ALONE: "one process",
    ROWS: "two replicas, rows",
    DENSE: "two replicas, dense deltas",
}
AIM_POINTS = 1.0
REPLICAS = 2
REPORTED_WITHIN_S, SETTLES_WITHIN_S = 0.8, 30.0


@dataclass(frozen=True)
class Plan:
    """What is trained, and for how long."""

    course: WideCourse
    epochs: int
    wider: WideCourse  # whose bytes are weighed, in one epoch
    dense_samples: int  # in one epoch, of both
    push_every: int = 1
    fetch_every: int = 1


QUICK = Plan(
    WideCourse(PACKAGES, train_samples=6_000, test_samples=1_000),
    epochs=2,
    wider=WideCourse(SYNTHETIC, scale=0.08, train_samples=5_120, test_samples=100),
    dense_samples=2_560,
)
FULL = Plan(
    WideCourse(PACKAGES, test_samples=4_000),
    epochs=8,
    wider=WideCourse(SYNTHETIC, scale=0.3, train_samples=20_480, test_samples=100),
    dense_samples=5_120,
)


@dataclass(frozen=True)
class Run:
    """One run: P@1 after each epoch, and what travelled."""

    name: str
    samples: int
    seconds: float
    precision: tuple[float, ...]
    pushed_bytes: int
    pulled_bytes: int
    weights_bytes: int  # of all parameters: a dense delta

    @property
    def bytes_per_sample(self) -> float:
        return (self.pushed_bytes + self.pulled_bytes) / self.samples


def strategy(name: str, plan: Plan) -> mh.Strategy:
    if name == ALONE:
        return mh.Hogwild(workers=1)
    return mh.Downpour(
        replicas=REPLICAS,
        servers=1,
        workers=1,
        push_every=plan.push_every,
        fetch_every=plan.fetch_every,
        transport="tcp",
        epoch_share=1.0,  # an epoch is over when all of its samples are trained
        push="weights" if name == DENSE else "gradients",
    )


def train(name: str, course: WideCourse, samples: WideSet, epochs: int, plan: Plan) -> Run:
    if name == DENSE:
        samples, epochs = replace(samples, train=some_of(samples.train, plan.dense_samples)), 1
    progress(f"{course.data}, {TITLES[name]} ...")
    job = replace(job_of(course, samples, lambda event: None), epochs=epochs, schedule=falling)
    precision, seconds, trained = [], 0.0, 0
    with strategy(name, plan).start(job) as session:
        for epoch in range(epochs):
            began = time.monotonic()
            trained += session.train_epoch(epoch).samples
            seconds += time.monotonic() - began
            precision.append(precision_at_1(list(job.model.parameters()), samples.test))
        pushed, pulled = settled_traffic(session)
    weights_bytes = sum(4 * parameter.numel() for parameter in job.model.parameters())
    pulled = max(0, pulled - REPLICAS * weights_bytes)
    return Run(name, trained, seconds, tuple(precision), pushed, pulled, weights_bytes)


def settled_traffic(session: Session) -> tuple[int, int]:
    """Bytes that replicas pushed and fetched, once none of them reports more."""
    if not isinstance(session, DownpourSession):
        return 0, 0
    deadline = time.monotonic() + SETTLES_WITHIN_S
    before = (-1, -1)
    while time.monotonic() < deadline:
        traffic = session._crew.traffic()
        found = traffic.pushed_bytes, traffic.pulled_bytes
        if found == before:
            break
        before = found
        time.sleep(REPORTED_WITHIN_S)
    return before


def falling(step: int, total_steps: int) -> float:
    """The rate as a share of the first one: down to nothing along a line."""
    return 1.0 - step / total_steps


def times_fewer(runs: dict[str, Run]) -> float:
    return runs[DENSE].bytes_per_sample / runs[ROWS].bytes_per_sample


def times_fewer_at_one_pace(runs: dict[str, Run], plan: Plan) -> float:
    """If every push of rows were a dense delta, and every fetch all weights."""
    rows = runs[ROWS]
    pushes_per_sample = 1 / (plan.course.batch * plan.push_every)
    fetches_per_sample = 1 / (plan.course.batch * plan.fetch_every)
    dense = rows.weights_bytes * (pushes_per_sample + fetches_per_sample)
    return dense / rows.bytes_per_sample


def points_behind(runs: dict[str, Run]) -> float:
    return runs[ALONE].precision[-1] - runs[ROWS].precision[-1]


def run_figures(run: Run) -> dict[str, Any]:
    return {
        "samples": run.samples,
        "samples_per_s": round(run.samples / run.seconds, 1),
        "p@1": [round(value, 2) for value in run.precision],
        "pushed_bytes_per_sample": round(run.pushed_bytes / run.samples),
        "pulled_bytes_per_sample": round(run.pulled_bytes / run.samples),
    }


def set_figures(runs: dict[str, Run], plan: Plan) -> dict[str, Any]:
    return {
        "runs": {name: run_figures(run) for name, run in runs.items()},
        "times_fewer_bytes": round(times_fewer(runs), 2),
        "times_fewer_bytes_at_one_pace": round(times_fewer_at_one_pace(runs, plan), 2),
    }


def figures(runs: dict[str, Run], wider: dict[str, Run], plan: Plan) -> dict[str, Any]:
    return {
        **set_figures(runs, plan),
        "wider": set_figures(wider, plan),
        "points_behind_one_process": round(points_behind(runs), 2),
        "aim_points": AIM_POINTS,
        "met": points_behind(runs) <= AIM_POINTS,
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


def print_runs(title: str, runs: dict[str, Run], plan: Plan) -> None:
    print_table(
        f"{title} on two replicas, batch {plan.course.batch}, "
        f"push_every {plan.push_every}, fetch_every {plan.fetch_every}",
        ["", "samples", "samples/s", "pushed, KB/sample", "fetched, KB/sample", "P@1, %"],
        [row(run) for run in runs.values()],
    )
    print(
        f"{times_fewer(runs):.1f} times fewer bytes than the dense deltas that were sent; "
        f"{times_fewer_at_one_pace(runs, plan):.1f} times fewer than one for each push of rows."
    )


def draw(runs: dict[str, Run], wider: dict[str, Run]) -> None:
    with picture("slide_distributed", 2) as (weights, curves):
        for shift, name in ((-0.2, DENSE), (0.2, ROWS)):
            heights = [found[name].bytes_per_sample / 1e3 for found in (runs, wider)]
            weights.bar([shift, 1 + shift], heights, 0.4, label=TITLES[name])
        weights.set_xticks([0, 1], ["packages", "wider, synthetic"])
        weights.set(ylabel="KB per sample, pushed and fetched", yscale="log")
        weights.legend()
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
    runs = {name: train(name, plan.course, samples, plan.epochs, plan) for name in TITLES}
    samples = plan.wider.samples()
    wider = {name: train(name, plan.wider, samples, 1, plan) for name in (ROWS, DENSE)}
    print_runs("Debian's packages", runs, plan)
    print(f"P@1 is {points_behind(runs):+.2f} points behind one process; aim: at most 1.")
    print_runs(f"Synthetic samples with {samples.labels:,} labels", wider, plan)
    draw(runs, wider)
    found = figures(runs, wider, plan)
    return {"push_every": plan.push_every, "fetch_every": plan.fetch_every, **found}
