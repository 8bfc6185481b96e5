"""`manyhands recipes`: the built-in recipes and their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from manyhands.cli.failures import Debug, one_line_errors

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
      manyhands recipes my_recipe.py
    """
    from manyhands.recipes.loading import BUILT_IN, load_recipe

    names = BUILT_IN if recipe is None else (recipe,)
    typer.echo("\n\n".join(_described(load_recipe(name)) for name in names))


def _described(module: RecipeModule) -> str:
    from manyhands.recipes.conversion import shown, type_name

    rows = [(f"{s.name}={shown(s.default)}", type_name(s.type), s.description)
            for s in module.settings]  # fmt: skip
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    lines = [f"{module.name}: {module.description}".rstrip(": ")]
    for pair, kind, description in rows:
        lines.append(f"  {pair:<{widths[0]}}  {kind:<{widths[1]}}  {description}".rstrip())
    return "\n".join(lines if rows else [*lines, "  (no settings)"])
