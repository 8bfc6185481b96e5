"""The strategies by name. Apart from the package, so that a role imports its own alone."""

from collections.abc import Mapping

from manyhands.strategies.downpour import Downpour
from manyhands.strategies.hogwild import Hogwild
from manyhands.strategies.strategy import Strategy
from manyhands.strategies.synchronous import Synchronous

STRATEGIES: Mapping[str, type[Strategy]] = {
    Synchronous.name: Synchronous,
    Hogwild.name: Hogwild,
    Downpour.name: Downpour,
}
