"""Finding a recipe: a built-in one by name, or a user's Python file by path."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from manyhands.errors import ConfigError, ManyhandsError
from manyhands.recipes.nearest import did_you_mean, listed
from manyhands.recipes.recipe import Recipe
from manyhands.recipes.settings import Setting, apply_settings, declared_settings
from manyhands.recipes.user_file import failure, import_file

BUILT_IN = (
    "mnist",
    "mnist_mlp",
    "packages",
    "synthetic-670k",
    "extreme",
    "amazon-670k",
    "delicious-200k",
)


@dataclass(frozen=True)
class NoSettings:
    """The settings of a recipe that offers none."""


@dataclass(frozen=True)
class RecipeModule:
    """A recipe that has been found and imported, and is not built yet.

    `name` finds it again: a built-in name, or the absolute path of a user's file.
    """

    name: str
    description: str
    settings_type: type
    module: ModuleType

    @property
    def settings(self) -> list[Setting]:
        """The keys of `--set`."""
        return declared_settings(self.settings_type)

    def apply(self, given: Mapping[str, Any]) -> Any:
        """This recipe's settings with these keys changed."""
        return apply_settings(self.settings_type, given)

    def build(self, settings: Any) -> Recipe:
        """Build the model, the data and the rest. `ConfigError` when the recipe's code fails."""
        arguments = () if self.settings_type is NoSettings else (settings,)
        try:
            recipe = self.module.build(*arguments)
        except ManyhandsError:
            raise
        except Exception as error:
            raise failure("build() failed", self.module, error) from error
        if not isinstance(recipe, Recipe):
            raise ConfigError(
                f"build() in {self.name} returned {type(recipe).__name__}; "
                "expected a manyhands.recipes.Recipe."
            )
        return recipe


def load_recipe(name: str) -> RecipeModule:
    """The recipe with this built-in name, or in this `.py` file."""
    if name.endswith(".py") or "/" in name:
        path = Path(name).expanduser().resolve()
        return _checked(str(path), import_file(path))
    module = name.replace("-", "_")  # either is as good
    named = {known.replace("-", "_"): known for known in BUILT_IN}
    if module not in named:
        raise ConfigError(_unknown(name))
    return _checked(named[module], importlib.import_module(f"manyhands.recipes.{module}"))


def _unknown(name: str) -> str:
    hint = did_you_mean(name, BUILT_IN)
    if Path(f"{name}.py").is_file():
        hint = f" There is a file {name}.py here; write {name}.py to train it."
    return (
        f"No recipe is called {name!r}.{hint} "
        f"Built in: {listed(BUILT_IN)}; or give the path of a .py file."
    )


def _checked(name: str, module: ModuleType) -> RecipeModule:
    build = getattr(module, "build", None)
    if not callable(build):
        raise ConfigError(f"{name} has no function build(settings); a recipe needs one.")
    settings_type = getattr(module, "Settings", NoSettings)
    description = (module.__doc__ or "").strip().partition("\n")[0]
    try:
        _check_arguments(build, settings_type)
        declared_settings(settings_type)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    return RecipeModule(name, description, settings_type, module)


def _check_arguments(build: Callable[..., Any], settings_type: type) -> None:
    without = settings_type is NoSettings
    try:
        inspect.signature(build).bind(*(() if without else (settings_type,)))
    except TypeError as error:
        raise ConfigError(
            "build() wants an argument but there is no Settings to give it; "
            "add a dataclass Settings, or let build() take no argument."
            if without
            else "build() must take one argument, the Settings."
        ) from error
