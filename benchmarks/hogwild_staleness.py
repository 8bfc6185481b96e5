"""Does the same program train alike with more workers? The measurement behind `share_batch`.

The MNIST recipe at its own batch size and rate with 1 and with 8 workers: the batch shared out or
whole, the momentum kept per worker or fed by all of them.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import manyhands as mh
from benchmarks.harness.report import print_table
from benchmarks.harness.rounds import progress
from manyhands.recipes import mnist

MANY = 8


class CommonMomentum(mh.optim.SGD):
    """SGD whose momentum all workers feed: what `Hogwild` does not do."""

    state_per_worker: ClassVar[bool] = False


CASES = {
    "1 worker": (mh.Hogwild(workers=1), mh.optim.SGD),
    f"{MANY} workers, batch shared out": (mh.Hogwild(workers=MANY), mh.optim.SGD),
    f"{MANY} workers, shared out, common momentum": (mh.Hogwild(workers=MANY), CommonMomentum),
    f"{MANY} workers, whole batches": (
        mh.Hogwild(workers=MANY, share_batch=False),
        mh.optim.SGD,
    ),
    f"{MANY} workers, whole batches, common momentum": (
        mh.Hogwild(workers=MANY, share_batch=False),
        CommonMomentum,
    ),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, help="how many seeds; default: 3, or 1 with --quick")


def train(strategy: mh.Strategy, rule: type[mh.optim.SGD], seed: int, quick: bool) -> float | None:
    """The test accuracy in percent, or None when the run diverged."""
    epochs = 1 if quick else 3
    recipe = mnist.build(mnist.Settings(seed=seed, epochs=epochs))
    train_set = recipe.train.subset(np.arange(12_000)) if quick else recipe.train
    with tempfile.TemporaryDirectory() as folder:
        trainer = mh.Trainer(
            recipe.model,
            loss=recipe.loss,
            optimizer=rule(**asdict(recipe.optimizer)),
            schedule=recipe.schedule,
            ema=recipe.ema,
            strategy=strategy,
            batch_size=recipe.batch_size,
            seed=seed,
            progress=False,
            run_dir=Path(folder) / "run",
        )
        try:
            result = trainer.fit(train_set, validation=recipe.validation, epochs=epochs)
        except mh.errors.TrainingDiverged:
            return None
    return round(100 * result.accuracy, 2)


def run(options: argparse.Namespace) -> dict[str, Any]:
    seeds = options.seeds or (1 if options.quick else 3)
    found: dict[str, list[float | None]] = {name: [] for name in CASES}
    for seed in range(seeds):
        for name, (strategy, rule) in CASES.items():
            progress(f"seed {seed}: {name} ...")
            found[name].append(train(strategy, rule, seed, options.quick))
    print_table(
        "Test accuracy of the MNIST recipe at one batch size and rate, %",
        ["workers", *(f"seed {seed}" for seed in range(seeds))],
        [
            [name, *("diverged" if a is None else f"{a:.2f}" for a in accuracies)]
            for name, accuracies in found.items()
        ],
    )
    return {"accuracy_percent": found, "epochs": 1 if options.quick else 3}
