"""How to train: each strategy reads from top to bottom in one file."""

from collections.abc import Mapping

from manyhands.strategies.downpour import Downpour
from manyhands.strategies.faults import FaultPlan
from manyhands.strategies.hogwild import Hogwild
from manyhands.strategies.strategy import EMA, Strategy
from manyhands.strategies.synchronous import Synchronous

STRATEGIES: Mapping[str, type[Strategy]] = {
    Synchronous.name: Synchronous,
    Hogwild.name: Hogwild,
    Downpour.name: Downpour,
}

__all__ = ["EMA", "STRATEGIES", "Downpour", "FaultPlan", "Hogwild", "Strategy", "Synchronous"]
