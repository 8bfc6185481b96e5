"""`manyhands recipes`: the built-in recipes and their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from manyhands.cli.failures import Debug, one_line_errors
from manyhands.cli.setting_lines import setting_lines

if TYPE_CHECKING:
    from manyhands.recipes.loading import RecipeModule


@one_line_errors
def recipes(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE", help="Only this one: a name, or the path of your .py file."
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """List the recipes and their settings.

    The settings are shown with their defaults; train changes them with --set.

    \b
    Examples:
      manyhands recipes
      manyhands recipes mnist
      manyhands recipes synthetic-670k
      manyhands recipes my_recipe.py
    """
    from manyhands.recipes.loading import BUILT_IN, load_recipe

    names = BUILT_IN if recipe is None else (recipe,)
    typer.echo("\n\n".join(_described(load_recipe(name)) for name in names))


def _described(module: RecipeModule) -> str:
    title = f"{module.name}: {module.description}".rstrip(": ")
    return "\n".join([title, *setting_lines(module.settings, "(no settings)")])
