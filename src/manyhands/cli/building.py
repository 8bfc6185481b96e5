"""From what a person asked for to a trainer, and from a run's record back to the same trainer.

The record is the `[recipe]` table of a run's configuration: the recipe's name, every setting, the
options that were given and the strategy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

import manyhands as mh
from manyhands.errors import CheckpointError, ConfigError
from manyhands.recipes.loading import RecipeModule, load_recipe
from manyhands.recipes.nearest import did_you_mean, listed
from manyhands.recipes.settings import parse_pairs, settings_table

if TYPE_CHECKING:
    from pathlib import Path

    from manyhands.recipes.recipe import Recipe

_OPTIONAL = ("loss", "schedule", "ema", "early_stopping", "metrics", "step")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for: enough to build the same trainer again, here or after a restart.

    `options` are those of epochs, batch_size and seed that were given on the command line; they
    win over the recipe.
    """

    recipe: str
    strategy: str
    workers: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> Request:
        """The request that `Prepared.table` recorded."""
        try:
            return Request(
                recipe=table["name"],
                strategy=table["strategy"]["name"],
                workers=table["strategy"].get("workers"),
                settings=table.get("settings", {}),
                options=table.get("options", {}),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"The [recipe] table of the run's configuration is incomplete ({error}); "
                "expected name, settings and strategy as `manyhands train` writes them."
            ) from error


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A request whose recipe has been built."""

    request: Request
    recipe: Recipe
    table: dict[str, Any]

    def trainer(self, *, run_dir: Path | None = None, progress: bool = True) -> mh.Trainer:
        """The trainer for it."""
        given = {name: getattr(self.recipe, name) for name in _OPTIONAL}
        return mh.Trainer(
            self.recipe.model,
            optimizer=self.recipe.optimizer,
            strategy=make_strategy(self.request.strategy, self.request.workers),
            batch_size=self.recipe.batch_size,
            seed=self.recipe.seed,
            run_dir=run_dir,
            progress=progress,
            recipe=self.table,
            **{name: value for name, value in given.items() if value is not None},
        )


def requested_settings(
    pairs: Iterable[str], options: Mapping[str, int], known: Iterable[str]
) -> dict[str, Any]:
    """The `--set` pairs, joined by the options that this recipe also has as settings."""
    given: dict[str, Any] = dict(parse_pairs(pairs))
    known = set(known)
    for name, value in options.items():
        if name in given:
            flag = name.replace("_", "-")
            raise ConfigError(
                f"{name} is given twice: --{flag} {value} and --set {name}={given[name]}; "
                "give one of them."
            )
        if name in known:
            given[name] = value
    return given


def prepare(module: RecipeModule, request: Request) -> Prepared:
    """Build the recipe under its seed. `ConfigError` for settings or code that don't work."""
    make_strategy(request.strategy, request.workers)  # refused before anything is built
    settings = module.apply(request.settings)
    torch.manual_seed(request.options.get("seed", getattr(settings, "seed", 0)))
    recipe = replace(module.build(settings), **request.options)
    strategy = {"name": request.strategy, "workers": request.workers}
    table = {
        "name": module.name,
        "settings": settings_table(settings),
        "options": dict(request.options),
        "strategy": {key: value for key, value in strategy.items() if value is not None},
    }
    return Prepared(request=request, recipe=recipe, table=table)


def rebuild(table: Mapping[str, Any], options: Mapping[str, int]) -> Prepared:
    """The trainer that a run's record describes, with these options changed."""
    recorded = Request.from_table(table)
    module = load_recipe(recorded.recipe)
    names = {setting.name for setting in module.settings}
    changed = {name: value for name, value in options.items() if name in names}
    request = replace(
        recorded,
        settings={**recorded.settings, **changed},
        options={**recorded.options, **options},
    )
    return prepare(module, request)


def make_strategy(name: str, workers: int | None) -> mh.strategies.Strategy:
    """The strategy with this name; None workers leaves its default."""
    strategies = {"synchronous": mh.Synchronous, "hogwild": mh.Hogwild}
    if name not in strategies:
        hint = did_you_mean(name, strategies)
        raise ConfigError(
            f"No strategy is called {name!r}.{hint} The strategies are: {listed(strategies)}."
        )
    return strategies[name]() if workers is None else strategies[name](workers=workers)
