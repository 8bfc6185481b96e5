"""Bytes per second of each fused optimizer kernel, against torch.optim and a memory copy.

One thread. Bytes are those that must move: weight, gradient and state are read once, weight and
state are written once. `torch.optim` is credited with the same bytes, however often it walks over
them, and the copy moves as many: half of them read, half written. (In memory an update can pass a
copy: it writes lines that it has read, while a copy's target is fetched only to be overwritten.)
Sizes go from what a core's own cache holds to what only memory does, cut into eight tensors as a
model's weights are.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.harness.report import picture, print_table, with_spread
from benchmarks.harness.rounds import Rounds, alternate, calls_per_second, progress
from manyhands import kernels

FLOAT_BYTES = 4
TENSORS = 8
LR = 1e-4
PEERS = ("foreach", "fused")
FULL_SIZES = tuple(2**power * 1024 for power in (6, 8, 10, 12, 14))
QUICK_SIZES = (64 * 1024, 16 * 1024 * 1024)


@dataclass(frozen=True)
class Kernel:
    """One update rule: how the native module and `torch.optim` each call it."""

    rule: str
    rule_options: dict[str, Any]
    torch_class: Callable[..., torch.optim.Optimizer]
    torch_options: dict[str, Any]
    states: int

    def bytes_moved(self, size: int) -> int:
        """Read weight, gradient, states; write weight, states."""
        return size * FLOAT_BYTES * (3 + 2 * self.states)


KERNELS = {
    "sgd": Kernel("sgd", {}, torch.optim.SGD, {}, 0),
    "sgd momentum": Kernel("sgd", {"momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}, 1),
    "sgd nesterov": Kernel(
        "sgd",
        {"momentum": 0.9, "nesterov": True},
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True},
        1,
    ),
    "adagrad": Kernel("adagrad", {"eps": 1e-10}, torch.optim.Adagrad, {}, 1),
    "adam": Kernel("adam", {}, torch.optim.Adam, {}, 2),
    "adamw": Kernel("adamw", {"weight_decay": 0.01}, torch.optim.AdamW, {"weight_decay": 0.01}, 2),
}


def pieces(size: int) -> list[torch.Tensor]:
    return list(torch.randn(size).chunk(TENSORS))


@dataclass(frozen=True)
class Contestant:
    """One way to update, and the weights that it moves."""

    weights: list[torch.Tensor]
    step: Callable[[], object]


def contestant(kernel: Kernel, size: int, variant: str | None) -> Contestant:
    """`torch.optim` in one of its variants, or ours for None; equal under equal seeds."""
    weights, grads = pieces(size), pieces(size)
    if variant is None:
        return Contestant(weights, native_step(kernel, weights, grads))
    parameters = [torch.nn.Parameter(weight) for weight in weights]
    for parameter, grad in zip(parameters, grads, strict=True):
        # Kept from step to step. The foreach form of Nesterov adds into it, so that the numbers
        # overflow in the end, which changes nothing about the time.
        parameter.grad = grad
    options = {**kernel.torch_options, variant: True}
    optimizer = kernel.torch_class(parameters, lr=LR, **options)
    return Contestant(weights, optimizer.step)


def native_step(
    kernel: Kernel, weights: list[torch.Tensor], grads: list[torch.Tensor]
) -> Callable[[], object]:
    rule = kernels.Rule(kernel.rule, **kernel.rule_options)
    # NumPy views cross into the kernel ten times faster than tensors. Weights and states stay where
    # they are, so their views are made once; a gradient is new in every step, and so is its view.
    views = [weight.numpy() for weight in weights]
    states = [[np.zeros_like(view) for _ in range(kernel.states)] for view in views]
    number = iter(range(1, 2**62))

    def step() -> None:
        kernels.update(rule, LR, next(number), 1.0, views, [g.numpy() for g in grads], states)

    return step


def memory_copy(moved_bytes: int) -> Callable[[], object]:
    source = torch.randn(moved_bytes // FLOAT_BYTES // 2)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def measure(kernel: Kernel, size: int, *, rounds: int, seconds: float) -> Rounds:
    """Bytes per second of all contestants at one size."""
    moved = kernel.bytes_moved(size)
    calls = {
        "ours": contestant(kernel, size, None).step,
        **{variant: contestant(kernel, size, variant).step for variant in PEERS},
        "copy": memory_copy(moved),
    }
    for call in calls.values():
        call()

    def turn(call: Callable[[], object]) -> Callable[[], float]:
        return lambda: moved * calls_per_second(call, seconds=seconds)

    return alternate({name: turn(call) for name, call in calls.items()}, rounds=rounds)


def figures(name: str, size: int, measured: Rounds) -> dict[str, Any]:
    best = measured.best(PEERS)
    return {
        "kernel": name,
        "floats": size,
        "bytes_per_s": {n: measured.rate(n).figures(0) for n in measured.rates},
        "best_peer": best,
        "ratio": measured.ratio("ours", best).figures(),
        "ratios": {n: measured.ratio("ours", n).figures() for n in (*PEERS, "copy")},
    }


def row(name: str, size: int, measured: Rounds) -> list[str]:
    rates = [f"{measured.rate(n).median / 1e9:.1f}" for n in ("ours", *PEERS, "copy")]
    against = [measured.ratio("ours", n) for n in (measured.best(PEERS), "copy")]
    return [f"{name}, {size // 1024:,} Ki", *rates, *(with_spread(r, ".2f") for r in against)]


def draw(measured: dict[tuple[str, int], Rounds], sizes: tuple[int, ...]) -> None:
    with picture("update_kernels", len(KERNELS)) as panels:
        for panel, name in zip(panels, KERNELS, strict=True):
            for contestant in ("ours", *PEERS, "copy"):
                rates = [measured[name, size].rate(contestant).median / 1e9 for size in sizes]
                style = "--" if contestant == "copy" else "-"
                panel.plot(sizes, rates, style, marker="o", label=contestant)
            panel.set(title=name, xscale="log", xlabel="floats", ylabel="GB/s", ylim=0)
            panel.legend()


def run(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    sizes = QUICK_SIZES if options.quick else FULL_SIZES
    rounds, seconds = (3, 0.1) if options.quick else (7, 0.3)
    measured: dict[tuple[str, int], Rounds] = {}
    for name, kernel in KERNELS.items():
        progress(f"{name} ...")
        for size in sizes:
            measured[name, size] = measure(kernel, size, rounds=rounds, seconds=seconds)
    print_table(
        "Fused updates, GB/s on one thread",
        ["kernel, floats", "ours", "foreach", "fused", "copy", "to the best peer", "to a copy"],
        [row(name, size, rounds) for (name, size), rounds in measured.items()],
    )
    draw(measured, sizes)
    return {
        "threads": 1,
        "figures": [figures(name, size, rounds) for (name, size), rounds in measured.items()],
    }
