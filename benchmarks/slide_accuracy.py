"""P@1 at convergence on Debian's packages: sparse layers against the full softmax.

The same net from the same first weights, the same number of epochs and the same falling rate; ours
computes a small part of the labels in each batch, the full softmax all of them. The aim is to be
within one point. How many of ours are found by the tables and how many drawn at random are the
layer's defaults, or `--simhash`, `--hardest`, `--limit` and `--floor`. Beside it the same layer
with sets of the same size that are drawn at random alone: what the tables are worth.

`--scale` trains on the synthetic set instead, of that size. What the tables are worth hangs on how
much of a layer a batch covers by chance. An eighth of the set with an eighth of the batch and of
the floor (`--scale 0.125 --batch 32 --floor 500`) covers what the whole set's batches do, in as
many steps and a fraction of the time.
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
    batches,
    precision_at_1,
    random_only,
)
from benchmarks.contestants.wide_softmax import FullSoftmax
from benchmarks.contestants.wide_training import job_of
from benchmarks.harness.machine import cores
from benchmarks.harness.report import picture, print_table
from benchmarks.harness.rounds import progress

OURS, DRAWN, FULL = "lsh", "random_only", "full_softmax"
TITLES = {OURS: "LSHLinear", DRAWN: "LSHLinear, random only", FULL: "full softmax"}
AIM_POINTS = 1.0


@dataclass(frozen=True)
class Plan:
    """What is trained, and for how long."""

    course: WideCourse
    epochs: int
    seeds: int
    full: bool = True


QUICK = Plan(WideCourse(PACKAGES, train_samples=8_000, test_samples=1_000), epochs=4, seeds=1)
FULL_PLAN = Plan(WideCourse(PACKAGES, test_samples=20_000), epochs=8, seeds=2)


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
    parser.add_argument("--simhash", type=int, help="SimHash of so many bits; default: the layer's")
    parser.add_argument("--hardest", type=int, help="most from the tables for one sample")
    parser.add_argument("--limit", type=int, help="most from the tables for a batch, by votes")
    parser.add_argument("--floor", type=int, help="random ones fill a set up to this many")
    parser.add_argument("--scale", type=float, help="the synthetic set, of this size")
    parser.add_argument("--batch", type=int, default=256, help="samples in a batch")
    parser.add_argument("--rate", type=float, default=0.003, help="of Adam, for everyone")
    parser.add_argument("--no-full", action="store_true", help="leave the full softmax out")


def falling(step: int, total_steps: int) -> float:
    """The rate as a share of the first one: down to nothing along a line."""
    return 1.0 - step / total_steps


def train_ours(name: str, course: WideCourse, samples: WideSet, epochs: int) -> Run:
    course = random_only(course, samples) if name == DRAWN else course
    job = replace(job_of(course, samples, lambda event: None), epochs=epochs, schedule=falling)
    curve, seconds = [], 0.0
    with mh.Hogwild(workers=cores()).start(job) as session:
        for epoch in range(epochs):
            began = time.monotonic()
            session.train_epoch(epoch)
            seconds += time.monotonic() - began
            curve.append(precision_at_1(list(job.model.parameters()), samples.test))
    return Run(name, course.seed, tuple(curve), seconds)


def train_full(name: str, course: WideCourse, samples: WideSet, epochs: int) -> Run:
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
    return Run(name, course.seed, tuple(curve), seconds)


CONTESTANTS = ((OURS, train_ours), (DRAWN, train_ours), (FULL, train_full))


def train_all(plan: Plan, samples: WideSet) -> list[Run]:
    runs = []
    for seed in range(plan.seeds):
        course = replace(plan.course, seed=seed)
        for name, train in CONTESTANTS:
            if name == FULL and not plan.full:
                continue
            runs.append(train(name, course, samples, plan.epochs))
            last = runs[-1]
            progress(
                f"{TITLES[last.name]}, seed {seed}: {last.last:.2f}% after {last.seconds:.0f} s"
            )
    return runs


def points_behind(runs: list[Run], other: str) -> list[float]:
    """By how much another is better than ours at the end, seed by seed."""
    ours, others = ([run.last for run in runs if run.name == name] for name in (OURS, other))
    return [theirs - mine for mine, theirs in zip(ours, others, strict=True)]


def spread(values: list[float]) -> dict[str, float]:
    mean = sum(values) / len(values)
    return {"mean": round(mean, 2), "low": round(min(values), 2), "high": round(max(values), 2)}


def figures(runs: list[Run]) -> dict[str, Any]:
    ahead = spread([-points for points in points_behind(runs, DRAWN)])
    behind = {}
    if any(run.name == FULL for run in runs):
        points = spread(points_behind(runs, FULL))
        behind = {
            "points_behind_full_softmax": points,
            "aim_points": AIM_POINTS,
            "met": points["mean"] <= AIM_POINTS,
        }
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
        "points_ahead_of_random_only": ahead,
        **behind,
    }


def draw(runs: list[Run], data: str) -> None:
    with picture("slide_accuracy", 1) as (panel,):
        for run in runs:
            label = TITLES[run.name] if run.seed == 0 else None
            color = f"C{list(TITLES).index(run.name)}"
            panel.plot(range(1, len(run.curve) + 1), run.curve, ".-", color=color, label=label)
        panel.set(xlabel="epoch", ylabel="P@1, %", title=f"{data}, a curve for each seed")
        panel.legend()


def asked_for(course: WideCourse, options: argparse.Namespace) -> WideCourse:
    """The course with the data, the batch and the rate of the options."""
    course = replace(course, batch=options.batch, rate=options.rate)
    if options.scale is None:
        return course
    return replace(course, data=SYNTHETIC, scale=options.scale, test_samples=5_000)


def run(options: argparse.Namespace) -> dict[str, Any]:
    plan = QUICK if options.quick else FULL_PLAN
    plan = replace(
        plan,
        course=asked_for(plan.course, options),
        epochs=options.epochs or plan.epochs,
        seeds=options.seeds or plan.seeds,
        full=not options.no_full,
    )
    torch.set_num_threads(cores())
    torch.set_flush_denormal(True)
    samples = plan.course.samples()
    sampling = mh.sparse.Sampling(
        hardest=options.hardest, limit=options.limit, floor=options.floor
    ).resolved(samples.labels, "batch")
    family = None if options.simhash is None else mh.sparse.SimHash(hashes=options.simhash)
    course = replace(plan.course, sampling=sampling, family=family)
    runs = train_all(replace(plan, course=course), samples)
    found = figures(runs)
    print_table(
        f"{course.data}, {samples.labels:,} labels: P@1 after {plan.epochs} epochs, %",
        ["", *(f"seed {seed}" for seed in range(plan.seeds)), "seconds"],
        [
            [
                title,
                *(f"{run.last:.2f}" for run in runs if run.name == name),
                ", ".join(f"{run.seconds:.0f}" for run in runs if run.name == name),
            ]
            for name, title in TITLES.items()
            if any(run.name == name for run in runs)
        ],
    )
    behind = found.get("points_behind_full_softmax")
    if behind:
        print(
            f"{behind['mean']:.2f} points behind the full softmax; aim: at most {AIM_POINTS:.0f}."
        )
    ahead = found["points_ahead_of_random_only"]
    print(f"{ahead['mean']:+.2f} points ahead of sets of the same size drawn at random.")
    draw(runs, course.data)
    used = {name: getattr(sampling, name) for name in ("hardest", "limit", "floor")}
    return {
        "data": course.data,
        "scale": course.scale,
        "batch": course.batch,
        "rate": course.rate,
        "epochs": plan.epochs,
        **used,
        **found,
    }
