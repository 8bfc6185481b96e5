"""Bytes pushed per image and images/s of Downpour with factors, against dense gradients.

Adam, section 3.2.6: a linear layer pushes activations and errors, the server multiplies. An MLP of
784-4096-4096-10 and a small net of AlexNet's shape, batch 32, pushing after every batch and after
every fourth; and the 4096 x 4096 layer alone, for what it sends. Over TCP: in the shared memory of
one machine no bytes travel, and the server's product costs what the worker's would have.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import manyhands as mh
from benchmarks.contestants.nets import build
from benchmarks.contestants.pushing import Pushing
from benchmarks.harness.report import picture, print_table, with_spread
from benchmarks.harness.rounds import Rounds, alternate, progress

BATCH = 32
FACTORS, DENSE = "factors", "dense"
NET_TITLES = {
    "mlp": "MLP 784-4096-4096-10",
    "alexnet": "small AlexNet",
    "layer": "the 4096 x 4096 layer alone",
}
AIM_BYTES, AIM_IMAGES = 25.0, 1.5  # times fewer for the layer at push_every=1, times faster


@dataclass(frozen=True)
class Plan:
    """What a run measures, and for how long."""

    cases: tuple[tuple[str, int], ...]  # net, push_every
    batches: int  # in an epoch
    rounds: int
    seconds: float


QUICK = Plan((("mlp", 1), ("layer", 1)), batches=16, rounds=2, seconds=1.0)
FULL = Plan(
    tuple((net, push_every) for net in NET_TITLES for push_every in (1, 4)),
    batches=64,
    rounds=5,
    seconds=6.0,
)


@dataclass
class Measured:
    """Images/s round by round, and what was pushed for an image."""

    rounds: Rounds
    bytes_per_image: dict[str, float]

    @property
    def times_fewer(self) -> float:
        return self.bytes_per_image[DENSE] / self.bytes_per_image[FACTORS]


Case = tuple[str, int]


def strategies(net: str, push_every: int) -> dict[str, mh.Downpour]:
    """The same run with the forms that were chosen and with all of them overruled."""
    names = [name for name, p in build(net).named_parameters() if p.requires_grad]
    common: dict[str, Any] = {
        "replicas": 1,
        "servers": 1,
        "workers": 1,
        "push_every": push_every,
        "fetch_every": 16,
        "transport": "tcp",
    }
    return {
        FACTORS: mh.Downpour(**common),
        DENSE: mh.Downpour(**common, forms=dict.fromkeys(names, "delta")),
    }


def measure(case: Case, plan: Plan) -> Measured:
    net, push_every = case
    progress(f"{NET_TITLES[net]}, push_every {push_every} ...")
    images = BATCH * plan.batches
    with ExitStack() as stack:
        everyone = {
            name: stack.enter_context(Pushing(net, BATCH, images, strategy))
            for name, strategy in strategies(net, push_every).items()
        }
        turns = {name: pushing.measure(plan.seconds) for name, pushing in everyone.items()}
        rounds = alternate(turns, rounds=plan.rounds)
        weighed = {name: pushing.bytes_per_image() for name, pushing in everyone.items()}
    return Measured(rounds, weighed)


def figures(case: Case, measured: Measured) -> dict[str, Any]:
    net, push_every = case
    ratio = measured.rounds.ratio(FACTORS, DENSE)
    found: dict[str, Any] = {
        "net": net,
        "push_every": push_every,
        "images_per_s": {n: measured.rounds.rate(n).figures(1) for n in measured.rounds.rates},
        "ratio": ratio.figures(),
        "bytes_per_image": {n: round(b) for n, b in measured.bytes_per_image.items()},
        "times_fewer_bytes": round(measured.times_fewer, 2),
    }
    if net == "layer":
        found |= {"aim": AIM_BYTES, "met": measured.times_fewer >= AIM_BYTES}
    else:
        found |= {"aim": AIM_IMAGES, "met": ratio.median >= AIM_IMAGES}
    return found


def row(case: Case, measured: Measured) -> list[str]:
    net, push_every = case
    return [
        f"{NET_TITLES[net]}, {push_every}",
        *(f"{measured.bytes_per_image[name] / 1e3:,.0f}" for name in (FACTORS, DENSE)),
        f"{measured.times_fewer:.1f}",
        *(f"{measured.rounds.rate(name).median:,.0f}" for name in (FACTORS, DENSE)),
        with_spread(measured.rounds.ratio(FACTORS, DENSE), ".2f"),
    ]


def draw(results: dict[Case, Measured]) -> None:
    labels = [f"{NET_TITLES[net]}\nevery {push_every}" for net, push_every in results]
    places = range(len(labels))
    with picture("factors", 2) as (weights, speeds):
        for shift, name in ((-0.2, DENSE), (0.2, FACTORS)):
            at = [place + shift for place in places]
            pushed = [m.bytes_per_image[name] / 1e6 for m in results.values()]
            weights.bar(at, pushed, 0.4, label=name)
            rates = [m.rounds.rate(name).median for m in results.values()]
            speeds.bar(at, rates, 0.4, label=name)
        weights.set(ylabel="MB pushed per image", yscale="log")
        speeds.set(ylabel="images/s")
        for panel in (weights, speeds):
            panel.set_xticks(list(places), labels, rotation=30, fontsize=8)
            panel.legend()


def run(options: argparse.Namespace) -> dict[str, Any]:
    plan = QUICK if options.quick else FULL
    results = {case: measure(case, plan) for case in plan.cases}
    print_table(
        f"Factors against dense gradients, batch {BATCH}",
        [
            "net, push_every",
            "factors, KB/image",
            "dense, KB/image",
            "times fewer",
            "factors, images/s",
            "dense, images/s",
            "times faster",
        ],
        [row(case, measured) for case, measured in results.items()],
    )
    draw(results)
    return {
        "batch": BATCH,
        "figures": [figures(case, measured) for case, measured in results.items()],
    }
