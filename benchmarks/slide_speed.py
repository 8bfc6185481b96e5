"""Sparse layers at 670,000 labels: samples/s and P@1 against time, beside PyTorch's softmaxes.

The same net, features -> 128 -> labels, from the same first weights with Adam on two sets: a
synthetic one with the statistics of Amazon-670K, and the dependencies of Debian's packages. Peers:
the full softmax and a sampled softmax with shared uniform negatives, both written for speed, and
our own layer with sets of the same size that are drawn at random alone: what the tables are worth.
All train in turns, ours with the wide layer's weights as float32 and as bfloat16; P@1 is taken
between turns, outside the clock. Then where the time goes, and how much of the memory's bandwidth
and of the processor's arithmetic that uses. The bytes are those of the rows that are read and
written, also where a cache has them: more than memory gives is possible.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import manyhands as mh
from benchmarks.contestants.wide_course import (
    PACKAGES,
    SYNTHETIC,
    WideCourse,
    WideSet,
    random_only,
)
from benchmarks.contestants.wide_phases import PhasedTraining, Phases
from benchmarks.contestants.wide_race import Curve, WideRacer, race
from benchmarks.contestants.wide_training import FULL, SAMPLED, OurTraining, PeerTraining
from benchmarks.harness.ceilings import copied_bytes_per_s, multiplied_flops_per_s
from benchmarks.harness.machine import cores
from benchmarks.harness.report import picture, print_table, with_spread
from benchmarks.harness.rounds import Rounds, progress

OURS, NARROW, DRAWN = "lsh", "lsh_bfloat16", "random_only"
TITLES = {
    OURS: "LSHLinear",
    NARROW: "LSHLinear, bfloat16",
    DRAWN: "LSHLinear, random only",
    FULL: "full softmax",
    SAMPLED: "sampled softmax",
}
# What is shared, and whether weights are bfloat16.
FORMS = {
    'share="batch"': ("batch", False),
    'share="sample"': ("sample", False),
    'share="batch", bfloat16': ("batch", True),
    'share="sample", bfloat16': ("sample", True),
}
AIM_FASTER, AIM_BANDWIDTH = 20.0, 0.5
# Of a best P@1, which is the luckiest of several measurements: what counts as having reached it.
NEARLY = 0.98


@dataclass(frozen=True)
class Plan:
    """What is measured on one set, and for how long."""

    course: WideCourse
    rounds: int
    turn_s: dict[str, float]
    phases_s: float
    lap_samples: int


QUICK = (
    Plan(
        WideCourse(SYNTHETIC, scale=0.05, test_samples=500, rate=0.005),
        rounds=2,
        turn_s={OURS: 1.0, DRAWN: 1.0, FULL: 1.0, SAMPLED: 1.0},
        phases_s=0.5,
        lap_samples=5_120,
    ),
    Plan(
        WideCourse(PACKAGES, train_samples=12_000, test_samples=500),
        rounds=2,
        turn_s={OURS: 1.0, DRAWN: 1.0, FULL: 1.0, SAMPLED: 1.0},
        phases_s=0.5,
        lap_samples=5_120,
    ),
)
COMPLETE = (
    Plan(
        WideCourse(SYNTHETIC, test_samples=3_000, rate=0.005),
        rounds=6,
        turn_s={OURS: 10.0, DRAWN: 10.0, FULL: 5.0, SAMPLED: 10.0},
        phases_s=6.0,
        lap_samples=25_600,
    ),
    Plan(
        WideCourse(PACKAGES, test_samples=20_000),
        rounds=6,
        turn_s={OURS: 3.0, DRAWN: 3.0, FULL: 4.0, SAMPLED: 4.0},
        phases_s=4.0,
        lap_samples=10_240,
    ),
)


@dataclass
class Measured:
    """One set: the race, and what ours cost by its own account."""

    course: WideCourse
    rounds: Rounds
    curves: dict[str, Curve]
    phases: dict[str, Phases]

    @property
    def target(self) -> float:
        """What both ours and the sampled softmax reached."""
        return self.level(SAMPLED)

    def level(self, rival: str) -> float:
        """Nearly the lower of the bests of ours and of a rival: a P@1 that both have."""
        return NEARLY * min(self.curves[name].best() for name in (OURS, rival))

    def seconds_to_target(self, name: str) -> float | None:
        return self.curves[name].seconds_to(self.target)

    def times_sooner(self, rival: str) -> float | None:
        """How much sooner than a rival ours had the P@1 that both reached; None if it is 0."""
        ours, theirs = (self.curves[name].seconds_to(self.level(rival)) for name in (OURS, rival))
        return theirs / ours if ours and theirs else None

    def ahead_of(self, rival: str) -> bool:
        """Sooner at what both reached, and no lower in the end."""
        sooner, level = self.times_sooner(rival), NEARLY * self.curves[rival].best()
        return sooner is not None and sooner > 1.0 and self.curves[OURS].best() >= level


@dataclass(frozen=True)
class Ceilings:
    """What the machine gives at most, on all cores."""

    bytes_per_s: float
    flops_per_s: float

    @classmethod
    def measured(cls) -> Ceilings:
        return cls(copied_bytes_per_s(seconds=1.0), multiplied_flops_per_s(seconds=1.0))

    def or_more(self, other: Ceilings) -> Ceilings:
        """The most that either of two looks found: neighbours only ever take away."""
        return Ceilings(
            max(self.bytes_per_s, other.bytes_per_s), max(self.flops_per_s, other.flops_per_s)
        )


def measure(plan: Plan) -> Measured:
    course = plan.course
    progress(f"{course.data}: samples and first weights ...")
    samples = course.samples()
    wide, narrow = (
        mh.Hogwild(workers=cores(), wide_weights=form) for form in ("float32", "bfloat16")
    )
    laps, drawn = plan.lap_samples, random_only(course, samples)
    with ExitStack() as stack:
        racers = {
            OURS: WideRacer(TITLES[OURS], OurTraining, wide, course, samples, laps),
            NARROW: WideRacer(TITLES[NARROW], OurTraining, narrow, course, samples, laps),
            DRAWN: WideRacer(TITLES[DRAWN], OurTraining, wide, drawn, samples, laps),
            FULL: WideRacer(TITLES[FULL], PeerTraining, FULL, course, samples),
            SAMPLED: WideRacer(TITLES[SAMPLED], PeerTraining, SAMPLED, course, samples),
        }
        for racer in racers.values():
            stack.enter_context(racer)
        turn_s = {**plan.turn_s, NARROW: plan.turn_s[OURS]}
        rounds = race(racers, turn_s, rounds=plan.rounds)
    curves = {name: racer.curve for name, racer in racers.items()}
    phases = {
        name: measure_phases(replace(course, share=share, narrow=narrow), samples, plan.phases_s)
        for name, (share, narrow) in FORMS.items()
    }
    return Measured(course, rounds, curves, phases)


def measure_phases(course: WideCourse, samples: WideSet, seconds: float) -> Phases:
    form = "bfloat16" if course.narrow else "float32"
    progress(f'{course.data}: where the time goes, share="{course.share}", {form} ...')
    with WideRacer(f"phases-{course.share}", PhasedTraining, course, samples) as training:
        training.ask("run", seconds / 2)  # tables fill, caches warm
        found: Phases = training.ask("run", seconds)
        return found


def phase_figures(phases: Phases, ceilings: Ceilings) -> dict[str, Any]:
    bytes_per_s = phases.bytes_per_sample * phases.samples_per_s
    flops_per_s = phases.flops_per_sample * phases.samples_per_s
    return {
        "samples_per_s": round(phases.samples_per_s, 1),
        "active": round(phases.active, 1),
        "shares_of_time": {name: round(share, 4) for name, share in phases.shares().items()},
        "bytes_per_sample": round(phases.bytes_per_sample),
        "gigabytes_per_s": round(bytes_per_s / 1e9, 2),
        "share_of_bandwidth": round(bytes_per_s / ceilings.bytes_per_s, 3),
        "gigaflops_per_s": round(flops_per_s / 1e9, 1),
        "share_of_arithmetic": round(flops_per_s / ceilings.flops_per_s, 3),
    }


def figures(measured: Measured, ceilings: Ceilings) -> dict[str, Any]:
    rounds = measured.rounds
    faster = rounds.ratio(OURS, FULL)
    sooner = {
        name: None if (times := measured.times_sooner(name)) is None else round(times, 2)
        for name in (SAMPLED, DRAWN)
    }
    phases = {name: phase_figures(p, ceilings) for name, p in measured.phases.items()}
    best_share = max(found["share_of_bandwidth"] for found in phases.values())
    return {
        "data": measured.course.data,
        "scale": measured.course.scale,
        "batch": measured.course.batch,
        "samples_per_s": {name: rounds.rate(name).figures(1) for name in TITLES},
        "ratios": {name: rounds.ratio(OURS, name).figures() for name in TITLES if name != OURS},
        "curves": {name: curve.figures() for name, curve in measured.curves.items()},
        "best_p@1": {name: round(measured.curves[name].best(), 2) for name in TITLES},
        "p@1_reached_by_both": round(measured.target, 2),
        "seconds_to_it": {
            name: None if (s := measured.seconds_to_target(name)) is None else round(s, 2)
            for name in TITLES
        },
        "times_sooner_than_sampled": sooner[SAMPLED],
        "times_sooner_than_random_only": sooner[DRAWN],
        "phases": phases,
        "aims": {"times_full_softmax": AIM_FASTER, "share_of_bandwidth": AIM_BANDWIDTH},
        "met": {
            "times_full_softmax": faster.median >= AIM_FASTER,
            "ahead_of_sampled": measured.ahead_of(SAMPLED),
            "ahead_of_random_only": measured.ahead_of(DRAWN),
            "share_of_bandwidth": best_share >= AIM_BANDWIDTH,
        },
    }


def print_race(measured: Measured) -> None:
    rows = []
    for name, curve in measured.curves.items():
        seconds = measured.seconds_to_target(name)
        rows.append(
            [
                TITLES[name],
                with_spread(measured.rounds.rate(name)),
                with_spread(measured.rounds.ratio(OURS, name), ".2f"),
                f"{curve.precision[-1]:.2f} after {curve.seconds[-1]:.0f} s",
                "not reached" if seconds is None else f"{seconds:.1f}",
            ]
        )
    print_table(
        f"{measured.course.data}: samples/s and P@1, batch {measured.course.batch}",
        [
            "",
            "samples/s",
            "ours is faster by",
            "P@1, %",
            f"seconds to {measured.target:.2f}%",
        ],
        rows,
    )
    sooner = measured.times_sooner(DRAWN)
    if sooner is not None:
        print(
            f"{measured.level(DRAWN):.2f}% {sooner:.2f} times sooner than sets of the same size "
            "drawn at random."
        )


def print_phases(measured: Measured, ceilings: Ceilings) -> None:
    rows = []
    for name, phases in measured.phases.items():
        found = phase_figures(phases, ceilings)
        rows.append(
            [
                name,
                f"{found['samples_per_s']:,.0f}",
                f"{found['active']:,.0f}",
                *(f"{100 * part:.0f}%" for part in found["shares_of_time"].values()),
                f"{found['bytes_per_sample'] / 1e3:,.1f}",
                f"{found['gigabytes_per_s']:.1f} ({100 * found['share_of_bandwidth']:.0f}%)",
                f"{found['gigaflops_per_s']:.0f} ({100 * found['share_of_arithmetic']:.0f}%)",
            ]
        )
    names = list(next(iter(measured.phases.values())).shares())
    copied, multiplied = ceilings.bytes_per_s / 1e9, ceilings.flops_per_s / 1e9
    print_table(
        f"{measured.course.data}: where the time of LSHLinear goes; the machine copies "
        f"{copied:.1f} GB/s and multiplies {multiplied:.0f} GFLOP/s",
        ["", "samples/s", "active", *names, "KB/sample", "GB/s", "GFLOP/s"],
        rows,
    )


def draw(results: list[Measured]) -> None:
    with picture("slide_speed", len(results)) as panels:
        for panel, measured in zip(panels, results, strict=True):
            for name, curve in measured.curves.items():
                panel.plot(curve.seconds, curve.precision, ".-", label=TITLES[name])
            panel.axhline(measured.target, color="grey", linestyle=":")
            panel.set(xlabel="seconds of training", ylabel="P@1, %", title=measured.course.data)
            panel.legend()


def run(options: argparse.Namespace) -> dict[str, Any]:
    plans = QUICK if options.quick else COMPLETE
    before = Ceilings.measured()
    results = [measure(plan) for plan in plans]
    ceilings = before.or_more(Ceilings.measured())
    for measured in results:
        print_race(measured)
        print_phases(measured, ceilings)
    draw(results)
    return {
        "copy_gigabytes_per_s": round(ceilings.bytes_per_s / 1e9, 2),
        "product_gigaflops_per_s": round(ceilings.flops_per_s / 1e9, 1),
        "figures": [figures(measured, ceilings) for measured in results],
    }
