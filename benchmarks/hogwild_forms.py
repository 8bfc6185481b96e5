"""Images/s of the forms that Hogwild could take: the measurement behind the form it has.

Processes or threads; PyTorch throughout, PyTorch with our fused update, or our native plan. Adam's
MNIST net, as many workers as cores.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import Any

import torch

from benchmarks.contestants import nets
from benchmarks.contestants.forms import STEPS, FormTraining, momentum_of
from benchmarks.contestants.torch_training import images_per_second, share
from benchmarks.harness.crew import Crew
from benchmarks.harness.machine import cores
from benchmarks.harness.report import print_table, with_spread
from benchmarks.harness.rounds import Measure, Rounds, alternate, progress

BATCHES = (1, 8, 64)
IMAGES = 8192
CHOSEN = "processes, plan"
STEP_TITLES = {"torch": "autograd, torch.optim", "fused": "autograd, fused update", "plan": "plan"}


def crews(x: torch.Tensor, y: torch.Tensor) -> dict[str, Crew]:
    """A crew for every form, by name."""
    found = {}
    for step in STEPS:
        for kind, processes, threads in (("processes", cores(), 1), ("threads", 1, cores())):
            name = f"{kind}, {STEP_TITLES[step]}"
            found[name] = Crew(name, FormTraining, processes, x, y, threads, step)
    return found


def measure(forms: dict[str, Crew], batch: int, *, rounds: int, seconds: float) -> Rounds:
    progress(f"batch {batch} ...")

    def turn(crew: Crew) -> Measure:
        def images() -> float:
            crew.tell("run", seconds)
            return images_per_second(crew.answers(expected_s=seconds))

        return images

    for crew in forms.values():
        model = share("mnist")
        crew.tell("configure", model, momentum_of(model), batch)
        crew.answers()
    return alternate({name: turn(crew) for name, crew in forms.items()}, rounds=rounds)


def figures(batch: int, measured: Rounds) -> dict[str, Any]:
    others = [name for name in measured.rates if name != CHOSEN]
    return {
        "batch": batch,
        "images_per_s": {name: measured.rate(name).figures(1) for name in measured.rates},
        "chosen": CHOSEN,
        "ratio": measured.ratio(CHOSEN, measured.best(others)).figures(),
        "ratios": {name: measured.ratio(CHOSEN, name).figures() for name in others},
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    rounds, seconds = (3, 0.3) if options.quick else (7, 1.0)
    x, y = (tensor.share_memory_() for tensor in nets.images(IMAGES))
    with ExitStack() as stack:
        forms = {name: stack.enter_context(crew) for name, crew in crews(x, y).items()}
        for crew in forms.values():
            crew.answers()
        measured = {b: measure(forms, b, rounds=rounds, seconds=seconds) for b in BATCHES}
    print_table(
        f"Forms of Hogwild on Adam's MNIST net, {cores()} workers: images/s",
        ["form", *(f"batch {batch}" for batch in BATCHES)],
        [[name, *(with_spread(measured[b].rate(name)) for b in BATCHES)] for name in forms],
    )
    return {"figures": [figures(batch, rounds) for batch, rounds in measured.items()]}
