"""Test accuracy of the MNIST recipe with 1, 2 and 4 replicas at equal epochs, seed by seed.

More replicas mean staler updates; the aim is to lose less than a tenth of a point by them.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import manyhands as mh
from benchmarks.harness.report import picture, print_table
from benchmarks.harness.rounds import progress
from manyhands.recipes import mnist

REPLICAS = (1, 2, 4)
SERVERS = 2
AIM_POINTS = 0.1
QUICK_IMAGES = 12_000


@dataclass(frozen=True)
class Run:
    """One training run: its percentage on the test set after each epoch."""

    replicas: int
    seed: int
    curve: tuple[float, ...]
    final: float
    seconds: float


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epochs", type=int, help="default: 20, or 1 with --quick")
    parser.add_argument("--seeds", type=int, help="how many seeds; default: 3, or 1 with --quick")
    parser.add_argument("--minutes", type=float, help="begin no seed that would end later")


def train(replicas: int, seed: int, epochs: int, quick: bool) -> Run:
    recipe = mnist.build(mnist.Settings(seed=seed, epochs=epochs))
    train_set = recipe.train.subset(np.arange(QUICK_IMAGES)) if quick else recipe.train
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        trainer = mh.Trainer(
            recipe.model,
            loss=recipe.loss,
            optimizer=recipe.optimizer,
            schedule=recipe.schedule,
            ema=recipe.ema,
            strategy=mh.Downpour(replicas=replicas, servers=SERVERS, workers=1),
            batch_size=recipe.batch_size,
            seed=seed,
            progress=False,
            run_dir=Path(folder) / "run",
        )
        result = trainer.fit(train_set, validation=recipe.validation, epochs=epochs)
    curve = tuple(100 * epoch["accuracy"] for epoch in result.history)
    return Run(replicas, seed, curve, 100 * result.accuracy, time.monotonic() - began)


def train_all(seeds: int, epochs: int, quick: bool, minutes: float = math.inf) -> list[Run]:
    runs: list[Run] = []
    for seed in range(seeds):  # in turns, so that a slow hour strikes all
        if not has_time(runs, seed, minutes):
            progress(f"No time for seed {seed}.")
            break
        for replicas in REPLICAS:
            progress(f"{replicas} replicas, seed {seed}, {epochs} epochs ...")
            runs.append(train(replicas, seed, epochs, quick))
            progress(f"  {runs[-1].final:.2f}% in {runs[-1].seconds:.0f} s")
    return runs


def has_time(runs: list[Run], seeds: int, minutes: float) -> bool:
    """Whether one more seed fits, which takes as long as the mean of so many that are done."""
    spent_s = sum(run.seconds for run in runs)
    return seeds == 0 or spent_s + spent_s / seeds <= 60 * minutes


def finals(runs: list[Run], replicas: int) -> list[float]:
    return [run.final for run in runs if run.replicas == replicas]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def figures(runs: list[Run], replicas: int) -> dict[str, Any]:
    accuracies = finals(runs, replicas)
    behind = mean(finals(runs, REPLICAS[0])) - mean(accuracies)
    return {
        "replicas": replicas,
        "accuracy": [round(accuracy, 3) for accuracy in accuracies],
        "mean": round(mean(accuracies), 3),
        "low": round(min(accuracies), 3),
        "high": round(max(accuracies), 3),
        "points_behind_one": round(behind, 3),
        "met": behind <= AIM_POINTS,
        "seconds": [round(run.seconds, 1) for run in runs if run.replicas == replicas],
    }


def draw(runs: list[Run]) -> None:
    with picture("replica_accuracy", 1) as (panel,):
        for run in runs:
            color = f"C{REPLICAS.index(run.replicas)}"
            label = f"{run.replicas} replicas" if run.seed == 0 else None
            epochs = range(1, len(run.curve) + 1)
            panel.plot(epochs, run.curve, ".-", color=color, label=label, linewidth=1)
        panel.set(xlabel="epoch", ylabel="test accuracy, %", title="MNIST, a curve for each seed")
        if max(max(run.curve) for run in runs) > 99:
            panel.set_ylim(98.0, 99.8)
        panel.legend()


def run(options: argparse.Namespace) -> dict[str, Any]:
    epochs = options.epochs or (1 if options.quick else 20)
    seeds = options.seeds or (1 if options.quick else 3)
    minutes = math.inf if options.minutes is None else options.minutes
    runs = train_all(seeds, epochs, options.quick, minutes)
    seeds = len(runs) // len(REPLICAS)
    found = [figures(runs, replicas) for replicas in REPLICAS]
    print_table(
        f"MNIST test accuracy after {epochs} epochs, %",
        ["replicas", *(f"seed {seed}" for seed in range(seeds)), "mean", "behind one"],
        [
            [
                str(f["replicas"]),
                *(f"{accuracy:.2f}" for accuracy in f["accuracy"]),
                f"{f['mean']:.2f}",
                f"{f['points_behind_one']:+.2f}",
            ]
            for f in found
        ],
    )
    draw(runs)
    return {"epochs": epochs, "aim_points": AIM_POINTS, "figures": found}
