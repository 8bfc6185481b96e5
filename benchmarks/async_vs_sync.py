"""Two replicas, one of them four times slower: Downpour against lock step and DDP on gloo.

The slow one's process is stopped three quarters of the time, the same way for everyone. First the
images/s, in turns, beside what each of the two replicas does alone: waiting should cost less than a
tenth of their sum. A turn is half an epoch of MNIST, because it ends with a wait for the last
words of the slow one, which a short one would mostly consist of. Then the time to an accuracy on
MNIST, from the same first weights, in laps of a part of the images, with the accuracy taken outside
the clock.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import manyhands as mh
from benchmarks.contestants.race import Course
from benchmarks.contestants.racers import DdpRacer, Race, Racer, StrategyRacer
from benchmarks.harness.report import picture, print_table, with_spread
from benchmarks.harness.rounds import Rounds, Spread, alternate, progress

TOGETHER, FAST, SLOW = "downpour", "fast_alone", "slow_alone"
SYNCHRONOUS, DDP = "synchronous", "ddp_gloo"
TITLES = {
    FAST: "one replica alone",
    SLOW: "the slow one alone",
    TOGETHER: "Downpour, both",
    SYNCHRONOUS: "Synchronous, 2 workers",
    DDP: "DDP on gloo, 2 ranks",
}
RACERS = (TOGETHER, SYNCHRONOUS, DDP)
AIM_SHARE = 0.9  # of what the two do alone


@dataclass(frozen=True)
class Plan:
    """What a run measures, and for how long."""

    rounds: int
    epoch_images: int  # of a turn for the rates
    lap_images: int  # of a race
    target: float
    limit_s: float
    seeds: int
    racers: tuple[str, ...]


QUICK = Plan(
    rounds=2,
    epoch_images=15_000,
    lap_images=4_096,
    target=85.0,
    limit_s=6.0,
    seeds=1,
    racers=(TOGETHER, DDP),
)
FULL = Plan(
    rounds=7,
    epoch_images=30_000,
    lap_images=12_000,
    target=98.5,
    limit_s=300.0,
    seeds=3,
    racers=RACERS,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, help="how many races; default: 3, or 1 with --quick")


def downpour(replicas: int) -> mh.Downpour:
    return mh.Downpour(replicas=replicas, servers=1, workers=1)


def contestants(course: Course) -> dict[str, Racer]:
    """For the rates, with a batch of the same size in each process; who is slow has less to do."""
    alone = replace(course, batch=course.batch // 2)
    slow = replace(alone, lap_images=course.lap_images // 4)
    lock_step = replace(course, lap_images=course.lap_images // 10)
    return {
        FAST: StrategyRacer(FAST, downpour(1), alone),
        SLOW: StrategyRacer(SLOW, downpour(1), slow, slowed="replica 0"),
        TOGETHER: StrategyRacer(TOGETHER, downpour(2), course, slowed="replica 1"),
        **in_lock_step(lock_step),
    }


def racers(course: Course, names: Sequence[str]) -> dict[str, Racer]:
    """For the races; who is slow is looked at as often in seconds, so more often in images."""
    lock_step = replace(course, lap_images=course.lap_images // 2)
    everyone = {
        TOGETHER: StrategyRacer(TOGETHER, downpour(2), course, slowed="replica 1"),
        **in_lock_step(lock_step),
    }
    return {name: everyone[name] for name in names}


def in_lock_step(course: Course) -> dict[str, Racer]:
    synchronous = mh.Synchronous(workers=2)
    return {
        SYNCHRONOUS: StrategyRacer(SYNCHRONOUS, synchronous, course, slowed="worker 1"),
        DDP: DdpRacer(DDP, course, slowed=True),
    }


def measure(everyone: dict[str, Racer], rounds: int) -> Rounds:
    """Images/s of everyone, in turns."""
    progress("Images/s ...")
    for racer in everyone.values():
        racer.wait_until_ready()
    turns = {name: racer.images_per_second for name, racer in everyone.items()}
    return alternate(turns, rounds=rounds)


def share_of_sum(measured: Rounds, name: str) -> Spread:
    """A contestant's rate as a share of what the two replicas do alone, round by round."""
    rates = measured.rates
    rounds = zip(rates[name], rates[FAST], rates[SLOW], strict=True)
    return Spread.of(mine / (fast + slow) for mine, fast, slow in rounds)


def race(everyone: dict[str, Racer], plan: Plan, seeds: int) -> dict[str, list[Race]]:
    """One after another, while the others stand still."""
    found: dict[str, list[Race]] = {name: [] for name in plan.racers}
    for seed in range(seeds):
        for name in plan.racers:
            progress(f"{TITLES[name]}, seed {seed}, to {plan.target}% ...")
            racer = everyone[name]
            found[name].append(racer.race(plan.target, limit_s=plan.limit_s, seed=seed))
    return found


def time_to(races: list[Race]) -> Spread:
    return Spread.of(race.seconds[-1] for race in races)


def times_faster(races: dict[str, list[Race]], name: str) -> Spread:
    """How many times sooner Downpour got there, seed by seed."""
    pairs = zip(races[TOGETHER], races[name], strict=True)
    return Spread.of(theirs.seconds[-1] / ours.seconds[-1] for ours, theirs in pairs)


def print_rates(measured: Rounds) -> None:
    rows = [
        [
            TITLES[name],
            with_spread(measured.rate(name)),
            with_spread(share_of_sum(measured, name), ".2f"),
            with_spread(measured.ratio(TOGETHER, name), ".2f"),
        ]
        for name in TITLES
    ]
    print_table(
        "One of two is four times slower: images/s",
        ["", "images/s", "of the sum of both alone", "Downpour is times faster"],
        rows,
    )


def print_races(races: dict[str, list[Race]], target: float) -> None:
    rows = [
        [
            TITLES[name],
            with_spread(time_to(found), ".1f"),
            f"{sum(race.reached(target) for race in found)} of {len(found)}",
            f"{sum(race.images for race in found) / len(found):,.0f}",
            with_spread(times_faster(races, name), ".2f"),
        ]
        for name, found in races.items()
    ]
    print_table(
        f"Seconds of training to {target}% on MNIST",
        ["", "seconds", "reached", "images", "Downpour is times sooner"],
        rows,
    )


def draw(measured: Rounds, races: dict[str, list[Race]], target: float) -> None:
    with picture("async_vs_sync", 2) as (bars, curves):
        names = list(TITLES)
        bars.bar([TITLES[n] for n in names], [measured.rate(n).median for n in names])
        total = measured.rate(FAST).median + measured.rate(SLOW).median
        bars.axhline(total, color="grey", linestyle=":", label="the sum of both alone")
        bars.tick_params(axis="x", rotation=20)
        bars.set(ylabel="images/s", title="One of two is four times slower")
        bars.legend()
        for number, (name, found) in enumerate(races.items()):
            for run in found:
                label = TITLES[name] if run is found[0] else None
                curves.plot(run.seconds, run.accuracy, ".-", color=f"C{number}", label=label)
        curves.axhline(target, color="grey", linestyle=":")
        curves.set(xlabel="seconds of training", ylabel="test accuracy, %", xscale="log")
        curves.set_ylim(bottom=max(80.0, target - 8))
        curves.legend()


def run(options: argparse.Namespace) -> dict[str, Any]:
    plan = QUICK if options.quick else FULL
    seeds = options.seeds or plan.seeds
    with ExitStack() as stack:
        everyone = contestants(Course(lap_images=plan.epoch_images))
        measured = measure({n: stack.enter_context(r) for n, r in everyone.items()}, plan.rounds)
    with ExitStack() as stack:
        everyone = racers(Course(lap_images=plan.lap_images), plan.racers)
        races = race({n: stack.enter_context(r) for n, r in everyone.items()}, plan, seeds)
    print_rates(measured)
    print_races(races, plan.target)
    draw(measured, races, plan.target)
    share = share_of_sum(measured, TOGETHER)
    return {
        "images_per_s": {name: measured.rate(name).figures(1) for name in measured.rates},
        "share_of_sum": {n: share_of_sum(measured, n).figures() for n in RACERS},
        "ratios": {n: measured.ratio(TOGETHER, n).figures() for n in RACERS if n != TOGETHER},
        "aim": AIM_SHARE,
        "met": share.median >= AIM_SHARE,
        "target_percent": plan.target,
        "races": {n: [r.figures(plan.target) for r in found] for n, found in races.items()},
        "seconds_to_target": {n: time_to(found).figures() for n, found in races.items()},
        "times_sooner": {n: times_faster(races, n).figures() for n in races if n != TOGETHER},
    }
