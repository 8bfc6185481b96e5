"""P@1 at convergence on Debian's packages: sparse layers against the full softmax.

The same net from the same first weights, the same number of epochs and the same falling rate; ours
computes a small part of the labels in each batch, the full softmax all of them. The aim is to be
within one point. How many of ours are found by the tables and how many drawn at random are the
layer's defaults, or `--limit` and `--floor`.
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
    batches,
    precision_at_1,
)
from benchmarks.contestants.wide_softmax import FullSoftmax
from benchmarks.contestants.wide_training import job_of
from benchmarks.harness.machine import cores
from benchmarks.harness.report import picture, print_table
from benchmarks.harness.rounds import progress

OURS, FULL = "lsh", "full_softmax"
TITLES = {OURS: "LSHLinear", FULL: "full softmax"}
AIM_POINTS = 1.0


@dataclass(frozen=True)
class Plan:
    """What is trained, and for how long."""

    course: WideCourse
    epochs: int
    seeds: int


QUICK = Plan(WideCourse(PACKAGES, train_samples=12_000, test_samples=1_000), epochs=4, seeds=1)
FULL_PLAN = Plan(WideCourse(PACKAGES, test_samples=5_000), epochs=8, seeds=2)


@dataclass(frozen=True)
class Run:
    """One training run: P@1 in percent after each epoch, and the seconds it trained."""

    name: str
    seed: int
    curve: tuple[float, ...]
    seconds: float

    @property
    def last(self) -> float:
        return self.curve[-1]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epochs", type=int, help="default: 8, or 4 with --quick")
    parser.add_argument("--seeds", type=int, help="how many seeds; default: 2, or 1 with --quick")
    parser.add_argument("--limit", type=int, help="most neurons from the tables")
    parser.add_argument("--floor", type=int, help="random ones fill a set up to this many")


def falling(step: int, total_steps: int) -> float:
    """The rate as a share of the first one: down to nothing along a line."""
    return 1.0 - step / total_steps


def train_ours(course: WideCourse, samples: WideSet, epochs: int) -> Run:
    job = replace(job_of(course, samples, lambda event: None), epochs=epochs, schedule=falling)
    curve, seconds = [], 0.0
    with mh.Hogwild(workers=cores()).start(job) as session:
        for epoch in range(epochs):
            began = time.monotonic()
            session.train_epoch(epoch)
            seconds += time.monotonic() - began
            curve.append(precision_at_1(list(job.model.parameters()), samples.test))
    return Run(OURS, course.seed, tuple(curve), seconds)


def train_full(course: WideCourse, samples: WideSet, epochs: int) -> Run:
    source = samples.train
    peer = FullSoftmax(list(course.model(samples).parameters()), course.rate)
    curve, seconds, step = [], 0.0, 0
    for epoch in range(epochs):
        numbers = batches(source, course.batch, epoch=epoch, seed=course.seed)
        began = time.monotonic()
        for of_batch in numbers:
            peer.rate = course.rate * falling(step, epochs * len(numbers))
            peer.step(*source.fetch(of_batch, seed=0))
            step += 1
        seconds += time.monotonic() - began
        curve.append(precision_at_1(peer.parameters, samples.test))
    return Run(FULL, course.seed, tuple(curve), seconds)


def train_all(plan: Plan) -> list[Run]:
    runs = []
    samples = plan.course.samples()
    for seed in range(plan.seeds):
        course = replace(plan.course, seed=seed)
        for train in (train_ours, train_full):
            runs.append(train(course, samples, plan.epochs))
            last = runs[-1]
            progress(
                f"{TITLES[last.name]}, seed {seed}: {last.last:.2f}% after {last.seconds:.0f} s"
            )
    return runs


def points_behind(runs: list[Run]) -> list[float]:
    """By how much the full softmax is better at the end, seed by seed."""
    ours, full = ([run.last for run in runs if run.name == name] for name in (OURS, FULL))
    return [theirs - mine for mine, theirs in zip(ours, full, strict=True)]


def figures(runs: list[Run]) -> dict[str, Any]:
    behind = points_behind(runs)
    mean = sum(behind) / len(behind)
    return {
        "runs": [
            {
                "name": run.name,
                "seed": run.seed,
                "p@1": [round(value, 2) for value in run.curve],
                "seconds": round(run.seconds, 1),
            }
            for run in runs
        ],
        "points_behind_full_softmax": {
            "mean": round(mean, 2),
            "low": round(min(behind), 2),
            "high": round(max(behind), 2),
        },
        "aim_points": AIM_POINTS,
        "met": mean <= AIM_POINTS,
    }


def draw(runs: list[Run]) -> None:
    with picture("slide_accuracy", 1) as (panel,):
        for run in runs:
            label = TITLES[run.name] if run.seed == 0 else None
            color = f"C{list(TITLES).index(run.name)}"
            panel.plot(range(1, len(run.curve) + 1), run.curve, ".-", color=color, label=label)
        panel.set(xlabel="epoch", ylabel="P@1, %", title="Debian's packages, a curve for each seed")
        panel.legend()


def run(options: argparse.Namespace) -> dict[str, Any]:
    plan = QUICK if options.quick else FULL_PLAN
    plan = replace(plan, epochs=options.epochs or plan.epochs, seeds=options.seeds or plan.seeds)
    sampling = mh.sparse.Sampling(limit=options.limit, floor=options.floor)
    plan = replace(plan, course=replace(plan.course, sampling=sampling))
    torch.set_num_threads(cores())
    torch.set_flush_denormal(True)
    runs = train_all(plan)
    found = figures(runs)
    print_table(
        f"Debian's packages: P@1 after {plan.epochs} epochs, %",
        ["", *(f"seed {seed}" for seed in range(plan.seeds)), "seconds"],
        [
            [
                title,
                *(f"{run.last:.2f}" for run in runs if run.name == name),
                ", ".join(f"{run.seconds:.0f}" for run in runs if run.name == name),
            ]
            for name, title in TITLES.items()
        ],
    )
    behind = found["points_behind_full_softmax"]
    print(f"{behind['mean']:.2f} points behind the full softmax; aim: at most {AIM_POINTS:.0f}.")
    draw(runs)
    used = sampling.resolved(plan.course.samples().labels, "batch")
    return {"epochs": plan.epochs, "limit": used.limit, "floor": used.floor, **found}
