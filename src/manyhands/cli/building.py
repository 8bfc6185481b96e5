"""From what a person asked for to a trainer, and from a run's record back to the same trainer.

The record is the `[recipe]` table of a run's configuration: the recipe's name, every setting, the
options that were given and the strategy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from manyhands.cli.strategy_options import make_strategy, recorded
from manyhands.errors import CheckpointError, ConfigError
from manyhands.recipes.loading import RecipeModule, load_recipe
from manyhands.recipes.recipe import Recipe
from manyhands.recipes.settings import parse_pairs, settings_table
from manyhands.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for: enough to build the same trainer again, here or after a restart.

    `options` are those of epochs, batch_size and seed that were given on the command line; they
    win over the recipe. `strategy_options` are those that were given; the others keep the
    strategy's defaults.
    """

    recipe: str
    strategy: str
    strategy_options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> Request:
        """The request that `Prepared.table` recorded."""
        try:
            strategy_options = dict(table["strategy"])
            return Request(
                recipe=table["name"],
                strategy=strategy_options.pop("name"),
                strategy_options=strategy_options,
                settings=table.get("settings", {}),
                options=table.get("options", {}),
            )
        except (KeyError, TypeError, ValueError) as error:
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

    def trainer(self, *, run_dir: Path | None = None, progress: bool = True) -> Trainer:
        """The trainer for it."""
        recipe = self.recipe
        return Trainer(
            recipe.model,
            loss=recipe.loss,
            optimizer=recipe.optimizer,
            strategy=make_strategy(self.request.strategy, self.request.strategy_options),
            schedule=recipe.schedule,
            metrics=recipe.metrics,
            ema=recipe.ema,
            early_stopping=recipe.early_stopping,
            step=recipe.step,
            batch_size=recipe.batch_size,
            seed=recipe.seed,
            run_dir=run_dir,
            progress=progress,
            recipe=self.table,
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
    make_strategy(request.strategy, request.strategy_options)  # refused before anything is built
    settings = module.apply(request.settings)
    torch.manual_seed(request.options.get("seed", getattr(settings, "seed", 0)))
    recipe = _with_options(module.build(settings), request.options)
    strategy_options = recorded(request.strategy, request.strategy_options)
    table = {
        "name": module.name,
        "settings": settings_table(settings),
        "options": dict(request.options),
        "strategy": {"name": request.strategy, **strategy_options},
    }
    return Prepared(request=request, recipe=recipe, table=table)


def _with_options(recipe: Recipe, options: Mapping[str, int]) -> Recipe:
    return replace(
        recipe,
        epochs=options.get("epochs", recipe.epochs),
        batch_size=options.get("batch_size", recipe.batch_size),
        seed=options.get("seed", recipe.seed),
    )


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
