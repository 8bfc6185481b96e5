"""Pushes per second with one, two and three copies of every bucket.

Three servers with a controller for each number of copies, all of them on this machine, and clients
that push a whole model as fast as it is acknowledged: over TCP and over the same-machine path, one
of them or three. An acknowledged push is on all copies. Every server also applies what it holds
copies of: three copies on one machine are three times the work, which between machines would be
shared out.
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
        clients: dict[tuple[str, str], Crew] = {}
        for copies in COPIES:
            fleet = stack.enter_context(Fleet(MODELS[model], servers=SERVERS, copies=copies))
            for path in PATHS:
                same_machine = path == "same_machine"
                crew = Crew("client", ModelPushing, max(CLIENTS), fleet.access, same_machine)
                clients[path, str(copies)] = stack.enter_context(crew)
        for crew in clients.values():
            crew.answers()
        return {
            (path, count): race(
                {str(copies): clients[path, str(copies)] for copies in COPIES}, count, plan
            )
            for path in PATHS
            for count in CLIENTS
        }


def race(crews: dict[str, Crew], clients: int, plan: Plan) -> Rounds:
    def turn(crew: Crew, seconds: float) -> Measure:
        def models_per_second() -> float:
            crew.tell("run", seconds, clients)
            return float(sum(crew.answers(expected_s=seconds)))

        return models_per_second

    for crew in crews.values():
        turn(crew, plan.seconds / 4)()
    return alternate(
        {name: turn(crew, plan.seconds) for name, crew in crews.items()}, rounds=plan.rounds
    )


def cost(rounds: Rounds, copies: int) -> Spread:
    """How many times as long a push takes as with one copy."""
    return rounds.ratio("1", str(copies))


def figures(measured: Measured) -> list[dict[str, Any]]:
    return [
        {
            "path": path,
            "clients": clients,
            "pushes_per_s": {name: rounds.rate(name).figures(1) for name in rounds.rates},
            "cost": {str(copies): cost(rounds, copies).figures() for copies in COPIES[1:]},
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
            name = f"{TITLES[model]}, {PATHS[path]}, {clients}"
            rows.append([name, *rates, *costs])
    print_table(
        "Pushes of a model per second by number of copies, and what a push costs times one copy",
        ["model, path, clients", "1 copy", "2 copies", "3 copies", "cost of 2", "cost of 3"],
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
