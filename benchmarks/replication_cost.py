"""Pushes per second with one, two and three copies of every bucket.

Three servers with a controller for each number of copies, all of them on this machine, and a client
that pushes a whole model as fast as it is acknowledged: over TCP and over the same-machine path. An
acknowledged push is on all copies. Every server also applies what it holds copies of: three copies
on one machine are three times the work, which between machines would be shared out.
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


QUICK = Plan(models=("mlp",), rounds=3, seconds=0.4)
FULL = Plan(models=("bias", "mlp", "wide"), rounds=9, seconds=1.0)

Measured = dict[str, Rounds]  # by path; rates by number of copies


def measure(model: str, plan: Plan) -> Measured:
    with ExitStack() as stack:
        clients: dict[tuple[str, str], Crew] = {}
        for copies in COPIES:
            fleet = stack.enter_context(Fleet(MODELS[model], servers=SERVERS, copies=copies))
            for path in PATHS:
                crew = Crew("client", ModelPushing, 1, fleet.access, path == "same_machine")
                clients[path, str(copies)] = stack.enter_context(crew)
        for crew in clients.values():
            crew.answers()
        return {path: race(path, clients, plan) for path in PATHS}


def race(path: str, clients: dict[tuple[str, str], Crew], plan: Plan) -> Rounds:
    def turn(crew: Crew, seconds: float) -> Measure:
        def models_per_second() -> float:
            crew.tell("run", seconds)
            return float(crew.answers(expected_s=seconds)[0])

        return models_per_second

    mine = {str(copies): clients[path, str(copies)] for copies in COPIES}
    for crew in mine.values():
        turn(crew, plan.seconds / 4)()
    return alternate(
        {name: turn(crew, plan.seconds) for name, crew in mine.items()}, rounds=plan.rounds
    )


def cost(rounds: Rounds, copies: int) -> Spread:
    """How many times as long a push takes as with one copy."""
    return rounds.ratio("1", str(copies))


def figures(measured: Measured) -> dict[str, Any]:
    return {
        path: {
            "pushes_per_s": {name: rounds.rate(name).figures(1) for name in rounds.rates},
            "cost": {str(copies): cost(rounds, copies).figures() for copies in COPIES[1:]},
            "met": cost(rounds, 3).median < AIM,
        }
        for path, rounds in measured.items()
    }


def print_costs(results: dict[str, Measured]) -> None:
    rows = []
    for model, measured in results.items():
        for path, rounds in measured.items():
            rates = [with_spread(rounds.rate(str(copies)), ",.0f") for copies in COPIES]
            costs = [with_spread(cost(rounds, copies), ".2f") for copies in COPIES[1:]]
            rows.append([f"{TITLES[model]}, {PATHS[path]}", *rates, *costs])
    print_table(
        "Pushes of a model per second by number of copies, and what a push costs times one copy",
        ["", "1 copy", "2 copies", "3 copies", "cost of 2", "cost of 3"],
        rows,
    )


def draw(results: dict[str, Measured]) -> None:
    with picture("replication_cost", len(results)) as panels:
        for panel, (model, measured) in zip(panels, results.items(), strict=False):
            for path, rounds in measured.items():
                rates = [rounds.rate(str(copies)).median for copies in COPIES]
                panel.plot(COPIES, rates, "o-", label=PATHS[path])
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
        "met": all(path["met"] for model in found.values() for path in model.values()),
    }
