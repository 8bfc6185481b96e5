"""Manyhands: deep-network training on the CPUs people already have.

The public names are imported when they are first used, so that the command line answers `--help`
at once and `manyhands doctor` works where torch or the native kernels don't.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyhands import data, errors, optim, sparse
    from manyhands.callbacks import Callback, EarlyStopping, RunView
    from manyhands.strategies.downpour import Downpour
    from manyhands.strategies.faults.plan import FaultPlan
    from manyhands.strategies.hogwild import Hogwild
    from manyhands.strategies.strategy import EMA, Strategy
    from manyhands.strategies.synchronous import Synchronous
    from manyhands.trainer import Result, Trainer

__all__ = [
    "EMA",
    "Callback",
    "Downpour",
    "EarlyStopping",
    "FaultPlan",
    "Hogwild",
    "Result",
    "RunView",
    "Strategy",
    "Synchronous",
    "Trainer",
    "data",
    "errors",
    "optim",
    "sparse",
]

_HOMES = {
    "callbacks": ("Callback", "EarlyStopping", "RunView"),
    "strategies.downpour": ("Downpour",),
    "strategies.faults.plan": ("FaultPlan",),
    "strategies.hogwild": ("Hogwild",),
    "strategies.strategy": ("EMA", "Strategy"),
    "strategies.synchronous": ("Synchronous",),
    "trainer": ("Result", "Trainer"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in ("data", "errors", "optim", "sparse"):
        return import_module(f"manyhands.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'manyhands' has no attribute {name!r}")
    value = getattr(import_module(f"manyhands.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
