"""Two replicas over a link of 100 Mbit/s: time to an accuracy on MNIST, against DDP on gloo.

Two network namespaces, joined by a link that is shaped for the time of the run: a parameter server
and a replica on one side, another replica on the other; DDP with a rank on each. Same net, same
batch in each process, same first weights. The accuracy is taken outside the clock, while everyone
stands still; what the link carries in that time is counted and its time added. Needs root; skipped
with a message where the namespaces can't be made.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import manyhands as mh
from benchmarks.contestants.race import Course
from benchmarks.contestants.racers import DdpRacer, Race, Racer, StrategyRacer
from benchmarks.harness.native_program import Unavailable
from benchmarks.harness.report import picture, print_table, with_spread
from benchmarks.harness.rounds import Spread, progress
from benchmarks.harness.shaped_link import ShapedLink

OURS, DDP = "downpour", "ddp_gloo"
TITLES = {OURS: "Downpour, 2 replicas", DDP: "DDP on gloo, 2 ranks"}
MEGABITS = 100
AIM = 5.0
PUSH_EVERY = FETCH_EVERY = 16  # steps: what the link carries must not hold the replica up


@dataclass(frozen=True)
class Plan:
    """What a run measures, and for how long."""

    lap_images: dict[str, int]
    target: float
    limit_s: float
    seeds: int


QUICK = Plan({OURS: 6_000, DDP: 3_000}, target=90.0, limit_s=12.0, seeds=1)
FULL = Plan({OURS: 12_000, DDP: 6_000}, target=98.5, limit_s=600.0, seeds=3)


@dataclass
class Run:
    """One race, and what it sent over the link."""

    race: Race
    carried_bytes: int


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, help="how many races; default: 3, or 1 with --quick")
    parser.add_argument("--megabits", type=int, default=MEGABITS, help="speed of the link")


def racer(name: str, course: Course, link: ShapedLink) -> Racer:
    if name == DDP:
        return DdpRacer(
            DDP,
            course,
            namespaces=[link.a.namespace, link.b.namespace],
            interfaces=[link.a.interface, link.b.interface],
        )
    strategy = mh.Downpour(
        replicas=2,
        servers=1,
        workers=1,
        push_every=PUSH_EVERY,
        fetch_every=FETCH_EVERY,
        host=link.a.address,
        prefixes=((), link.b.prefix),
    )
    return StrategyRacer(OURS, strategy, course, namespace=link.a.namespace)


def race(name: str, seed: int, plan: Plan, link: ShapedLink) -> Run:
    progress(f"{TITLES[name]}, seed {seed}, to {plan.target}% ...")
    course = Course(lap_images=plan.lap_images[name])
    with racer(name, course, link) as contestant:
        contestant.wait_until_ready()
        before = link.carried_bytes()
        found = contestant.race(plan.target, limit_s=plan.limit_s, seed=seed, late_s=link.late_s)
        return Run(found, link.carried_bytes() - before)


def figures(runs: list[Run], target: float) -> dict[str, Any]:
    images = sum(run.race.images for run in runs)
    return {
        "races": [run.race.figures(target) for run in runs],
        "seconds": Spread.of(run.race.seconds[-1] for run in runs).figures(),
        "carried_bytes_per_image": round(sum(run.carried_bytes for run in runs) / images, 1),
    }


def times_sooner(runs: dict[str, list[Run]]) -> Spread:
    pairs = zip(runs[OURS], runs[DDP], strict=True)
    return Spread.of(ddp.race.seconds[-1] / ours.race.seconds[-1] for ours, ddp in pairs)


def print_runs(runs: dict[str, list[Run]], target: float, megabits: int) -> None:
    rows = []
    for name, found in runs.items():
        images = sum(run.race.images for run in found)
        rows.append(
            [
                TITLES[name],
                with_spread(Spread.of(run.race.seconds[-1] for run in found), ".1f"),
                f"{sum(run.race.reached(target) for run in found)} of {len(found)}",
                f"{images / sum(run.race.seconds[-1] for run in found):,.0f}",
                f"{sum(run.carried_bytes for run in found) / images:,.0f}",
            ]
        )
    print_table(
        f"Over {megabits} Mbit/s: seconds of training to {target}% on MNIST",
        ["", "seconds", "reached", "images/s", "bytes over the link per image"],
        rows,
    )
    print(
        f"Downpour is there {with_spread(times_sooner(runs), '.2f')} times sooner; aim {AIM:.0f}."
    )


def draw(runs: dict[str, list[Run]], target: float) -> None:
    with picture("slow_network", 1) as (panel,):
        for number, (name, found) in enumerate(runs.items()):
            for run in found:
                label = TITLES[name] if run is found[0] else None
                curve = run.race.seconds, run.race.accuracy
                panel.plot(*curve, ".-", color=f"C{number}", label=label)
        panel.axhline(target, color="grey", linestyle=":")
        panel.set(xlabel="seconds of training", ylabel="test accuracy, %", xscale="log")
        panel.set(title="Two replicas over a slow link", ylim=(max(80.0, target - 8), 100))
        panel.legend()


def run(options: argparse.Namespace) -> dict[str, Any]:
    plan = QUICK if options.quick else FULL
    seeds = options.seeds or plan.seeds
    runs: dict[str, list[Run]] = {OURS: [], DDP: []}
    try:
        with ShapedLink(options.megabits) as link:
            for seed in range(seeds):
                for name in runs:
                    runs[name].append(race(name, seed, plan, link))
    except Unavailable as reason:
        print(f"Skipped: the slow link can't be made here: {reason}.")
        return {"skipped": str(reason)}
    print_runs(runs, plan.target, options.megabits)
    draw(runs, plan.target)
    ratio = times_sooner(runs)
    return {
        "megabits_per_s": options.megabits,
        "target_percent": plan.target,
        "figures": {name: figures(found, plan.target) for name, found in runs.items()},
        "ratio": ratio.figures(),
        "aim": AIM,
        "met": ratio.median >= AIM,
    }
