"""Pushes per second with one, two and three copies of every bucket.

Three servers with a controller for each number of copies, all of them on this machine, and clients
that push a whole model as fast as it is acknowledged: over TCP and over the same-machine path, one
of them or three. An acknowledged push is on all copies. All copies are on this machine, whose cores
do what between machines would be shared out.

What keeping three copies costs without any protocol is measured beside it: each push is sent to
three groups of servers that know nothing of each other.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from benchmarks.contestants.fleet import Fleet
from benchmarks.contestants.model_pushing import ModelPushing
from benchmarks.harness.crew import Crew
from benchmarks.harness.report import picture, print_table, with_spread
from benchmarks.harness.rounds import Measure, Rounds, Spread, alternate, progress
from manyhands.parameter_server.shard_map import ParameterSpec

SERVERS = 3
COPIES = (1, 2, 3)
CLIENTS = (1, 3)
APART = "apart"  # the same push to three fleets with one copy each
PATHS = {"tcp": "TCP", "same_machine": "same machine"}
MODELS = {
    "bias": (ParameterSpec("bias", (4096,)),),
    "mlp": (
        ParameterSpec("first", (400, 784)),
        ParameterSpec("second", (400, 400)),
        ParameterSpec("last", (10, 400)),
    ),
    "wide": (ParameterSpec("wide", (2048, 2048)),),
}
TITLES = {"bias": "16 KB", "mlp": "784-400-400-10, 1.9 MB", "wide": "16 MB"}
AIM = 2.5  # times as long with three copies as with one


@dataclass(frozen=True)
class Plan:
    """What a run measures, and for how long."""

    models: tuple[str, ...]
    rounds: int
    seconds: float


QUICK = Plan(models=("mlp",), rounds=3, seconds=0.3)
FULL = Plan(models=("bias", "mlp", "wide"), rounds=9, seconds=1.0)

Way = tuple[str, int]  # the path, and how many clients
Measured = dict[Way, Rounds]  # rates by number of copies


def measure(model: str, plan: Plan) -> Measured:
    with ExitStack() as stack:

        def crews(copies: int) -> dict[str, Crew]:
            fleet = stack.enter_context(Fleet(MODELS[model], servers=SERVERS, copies=copies))
            return {
                path: stack.enter_context(
                    Crew("client", ModelPushing, max(CLIENTS), fleet.access, path == "same_machine")
                )
                for path in PATHS
            }

        by_copies = {str(copies): crews(copies) for copies in COPIES}
        others = [crews(1) for _ in range(max(COPIES) - 1)]
        for of_paths in (*by_copies.values(), *others):
            for crew in of_paths.values():
                crew.answers()

        def contestants(path: str) -> dict[str, list[Crew]]:
            found = {copies: [of_paths[path]] for copies, of_paths in by_copies.items()}
            found[APART] = [*found["1"], *(of_paths[path] for of_paths in others)]
            return found

        return {
            (path, count): race(contestants(path), count, plan)
            for path in PATHS
            for count in CLIENTS
        }


def race(contestants: dict[str, list[Crew]], clients: int, plan: Plan) -> Rounds:
    def turn(crews: list[Crew], seconds: float) -> Measure:
        def models_per_second() -> float:
            """Pushes to all of the crews' fleets count once."""
            for crew in crews:
                crew.tell("run", seconds, clients)
            pushed = sum(float(sum(crew.answers(expected_s=seconds))) for crew in crews)
            return pushed / len(crews)

        return models_per_second

    for crews in contestants.values():
        turn(crews, plan.seconds / 4)()
    return alternate(
        {name: turn(crews, plan.seconds) for name, crews in contestants.items()},
        rounds=plan.rounds,
    )


def cost(rounds: Rounds, copies: int) -> Spread:
    """How many times as long a push takes as with one copy."""
    return rounds.ratio("1", str(copies))


def cost_apart(rounds: Rounds) -> Spread:
    """The same for three copies that are kept apart, without a protocol."""
    return rounds.ratio("1", APART)


def figures(measured: Measured) -> list[dict[str, Any]]:
    return [
        {
            "path": path,
            "clients": clients,
            "pushes_per_s": {name: rounds.rate(name).figures(1) for name in rounds.rates},
            "cost": {str(copies): cost(rounds, copies).figures() for copies in COPIES[1:]},
            "cost_apart": cost_apart(rounds).figures(),
            "met": cost(rounds, 3).median < AIM,
        }
        for (path, clients), rounds in measured.items()
    ]


def print_costs(results: dict[str, Measured]) -> None:
    rows = []
    for model, measured in results.items():
        for (path, clients), rounds in measured.items():
            rates = [with_spread(rounds.rate(str(copies)), ",.0f") for copies in COPIES]
            costs = [with_spread(cost(rounds, copies), ".2f") for copies in COPIES[1:]]
            costs.append(with_spread(cost_apart(rounds), ".2f"))
            name = f"{TITLES[model]}, {PATHS[path]}, {clients}"
            rows.append([name, *rates, *costs])
    print_table(
        "Pushes of a model per second by number of copies, and what a push costs times one copy",
        [
            *("model, path, clients", "1 copy", "2 copies", "3 copies"),
            *("cost of 2", "cost of 3", "of 3 apart"),
        ],
        rows,
    )


def draw(results: dict[str, Measured]) -> None:
    with picture("replication_cost", len(results)) as panels:
        for panel, (model, measured) in zip(panels, results.items(), strict=False):
            for number, ((path, clients), rounds) in enumerate(measured.items()):
                rates = [rounds.rate(str(copies)).median for copies in COPIES]
                style, color = "o-" if clients == 1 else "o--", f"C{number // len(CLIENTS)}"
                label = f"{PATHS[path]}, clients: {clients}"
                panel.plot(COPIES, rates, style, color=color, label=label)
            panel.set(xlabel="copies", ylabel="pushes/s", xticks=COPIES, ylim=0)
            panel.set_title(TITLES[model])
            panel.legend()


def run(options: argparse.Namespace) -> dict[str, Any]:
    plan = QUICK if options.quick else FULL
    results: dict[str, Measured] = {}
    for model in plan.models:
        progress(f"{TITLES[model]} ...")
        results[model] = measure(model, plan)
    print_costs(results)
    draw(results)
    found = {model: figures(measured) for model, measured in results.items()}
    return {
        "servers": SERVERS,
        "figures": found,
        "aim": AIM,
        "met": all(way["met"] for model in found.values() for way in model),
    }
