"""Images/s of Hogwild on one machine, against four ways to train with PyTorch alone.

Adam's MNIST net and a wide MLP, forward, backward and SGD with momentum, by batch size; then Figure
8 of the Adam paper: our images/s against the number of workers.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from benchmarks.contestants import nets
from benchmarks.contestants.ours import Ours
from benchmarks.contestants.peers import PEERS, TITLES, TUNED, Peers
from benchmarks.harness.machine import core_counts, cores
from benchmarks.harness.report import picture, print_table, with_spread
from benchmarks.harness.rounds import Rounds, alternate, progress

OURS = "ours"
AIMS = {1: 3.0, 8: 2.0, 64: 1.5}  # times the best peer; nowhere below 1
NET_TITLES = {"mnist": "Adam's MNIST net", "mlp": "MLP 784-4096-4096-10"}
PEER_IMAGES = 16_384


@dataclass(frozen=True)
class Plan:
    """What a run measures, and for how long."""

    batches: dict[str, tuple[int, ...]]
    scaling_batches: tuple[int, ...]
    peers: tuple[str, ...]
    rounds: int
    seconds: float
    least_pieces: int


QUICK = Plan(
    {"mnist": (1, 8, 64), "mlp": (64,)}, (64,), PEERS, rounds=3, seconds=0.25, least_pieces=2
)
FULL = Plan(
    {"mnist": (1, 8, 32, 64, 256), "mlp": (1, 8, 32, 64, 256)},
    (1, 64),
    (*PEERS, TUNED),
    rounds=7,
    seconds=1.0,
    least_pieces=4,
)

Results = dict[tuple[str, int], Rounds]


def ours(net: str, batch: int, workers: int, images: float, plan: Plan) -> Ours:
    return Ours(
        net, batch, workers=workers, images_per_epoch=images, least_pieces=plan.least_pieces
    )


def measure(peers: Peers, net: str, batch: int, plan: Plan) -> Rounds:
    """All contestants on one net and batch size."""
    progress(f"{NET_TITLES[net]}, batch {batch} ...")
    peers.configure(net, batch)
    turns = peers.measures(plan.seconds)
    # An epoch of ours should last a slice. A first guess of its rate comes from the peer alike.
    expected = 1.5 * peers.measures(0.2)["hogwild_example"]() * plan.seconds
    with ours(net, batch, cores(), expected, plan) as contestant:
        turns[OURS] = contestant.measure(plan.seconds)
        return alternate(turns, rounds=plan.rounds)


def scaling(batch: int, known: float, plan: Plan) -> Rounds:
    """Figure 8: our rate by number of workers, in turns. `known` is the rate with all cores."""
    progress(f"Figure 8, batch {batch}: {core_counts()} workers ...")
    with ExitStack() as stack:
        turns = {}
        for workers in core_counts():
            images = known * plan.seconds * workers / cores()
            contestant = stack.enter_context(ours("mnist", batch, workers, images, plan))
            turns[str(workers)] = contestant.measure(plan.seconds)
        return alternate(turns, rounds=plan.rounds)


def figures(net: str, batch: int, measured: Rounds) -> dict[str, Any]:
    best = measured.best(PEERS)
    ratio = measured.ratio(OURS, best)
    aim = AIMS.get(batch, 1.0)
    return {
        "net": net,
        "batch": batch,
        "images_per_s": {name: measured.rate(name).figures(1) for name in measured.rates},
        "best_peer": best,
        "ratio": ratio.figures(),
        "aim": aim,
        "met": ratio.median >= aim,
        "ratios": {n: measured.ratio(OURS, n).figures() for n in measured.rates if n != OURS},
    }


def scaling_figures(batch: int, measured: Rounds) -> dict[str, Any]:
    return {
        "batch": batch,
        "images_per_s": {name: measured.rate(name).figures(1) for name in measured.rates},
        "speedup": {name: measured.ratio(name, "1").figures() for name in measured.rates},
    }


def print_net(net: str, results: Results) -> None:
    batches = {batch: measured for (n, batch), measured in results.items() if n == net}
    names = list(next(iter(batches.values())).rates)

    def row(title: str, cells: Iterable[str]) -> list[str]:
        return [title, *cells]

    rows = [
        row(
            TITLES.get(name, f"Manyhands Hogwild, {cores()} workers"),
            (f"{measured.rate(name).median:,.0f}" for measured in batches.values()),
        )
        for name in names
    ]
    ratios = [measured.ratio(OURS, measured.best(PEERS)) for measured in batches.values()]
    rows.append(row("to the best peer, by round", (with_spread(r, ".2f") for r in ratios)))
    rows.append(row("aim", (f"{AIMS.get(batch, 1.0):.1f}" for batch in batches)))
    print_table(f"{NET_TITLES[net]}: images/s", ["", *(f"batch {b}" for b in batches)], rows)


def print_scaling(scalings: dict[int, Rounds]) -> None:
    rows = [
        [str(workers), *(with_spread(m.rate(str(workers))) for m in scalings.values())]
        for workers in core_counts()
    ]
    columns = ["workers", *(f"batch {batch}" for batch in scalings)]
    print_table("Figure 8: images/s by number of workers", columns, rows)


def draw(results: Results, scalings: dict[int, Rounds]) -> None:
    with picture("trainer_node", 3) as panels:
        for panel, net in zip(panels, NET_TITLES, strict=False):
            batches = [batch for n, batch in results if n == net]
            for name in results[net, batches[0]].rates:
                rates = [results[net, batch].rate(name).median for batch in batches]
                label = TITLES.get(name, "Manyhands Hogwild")
                width = 2.5 if name == OURS else 1.2
                panel.plot(batches, rates, marker="o", label=label, linewidth=width)
            panel.set(xscale="log", yscale="log", xlabel="batch", ylabel="images/s")
            panel.set_title(NET_TITLES[net])
            panel.legend(fontsize=8)
        for batch, measured in scalings.items():
            rates = [measured.rate(str(n)).median for n in core_counts()]
            panels[2].plot(core_counts(), rates, marker="o", label=f"batch {batch}")
        fastest = max(max(rates) for m in scalings.values() for rates in m.rates.values())
        panels[2].set(title="Figure 8: workers", xlabel="workers", ylabel="images/s")
        panels[2].set_ylim(0, 1.1 * fastest)
        panels[2].set_xticks(core_counts())
        panels[2].legend()


def run(options: argparse.Namespace) -> dict[str, Any]:
    plan = QUICK if options.quick else FULL
    progress("Starting the peers' processes ...")
    with Peers(plan.peers, *nets.images(PEER_IMAGES)) as peers:
        results = {
            (net, batch): measure(peers, net, batch, plan)
            for net, batches in plan.batches.items()
            for batch in batches
        }
    scalings = {
        batch: scaling(batch, results["mnist", batch].rate(OURS).median, plan)
        for batch in plan.scaling_batches
    }
    for net in plan.batches:
        print_net(net, results)
    print_scaling(scalings)
    draw(results, scalings)
    return {
        "figures": [figures(net, batch, rounds) for (net, batch), rounds in results.items()],
        "scaling": [scaling_figures(batch, rounds) for batch, rounds in scalings.items()],
    }
