"""`manyhands strategies`: the ways to train and their options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from manyhands.cli.failures import Debug, one_line_errors
from manyhands.cli.setting_lines import setting_lines

if TYPE_CHECKING:
    from manyhands.strategies.strategy import Strategy


@one_line_errors
def strategies(debug: Debug = False) -> None:
    """List the strategies and their options.

    The options are shown with their defaults; train changes them with --strategy-set, or with the
    flag that some have of their own.

    \b
    Example:
      manyhands strategies
    """
    from manyhands.strategies.catalogue import STRATEGIES

    typer.echo("\n\n".join(_described(name, kind) for name, kind in STRATEGIES.items()))


def _described(name: str, kind: type[Strategy]) -> str:
    from manyhands.cli.strategy_options import offered_options

    first_line = (kind.__doc__ or "").strip().partition("\n")[0]
    options = setting_lines(offered_options(kind).values(), "(no options)")
    return "\n".join([f"{name}: {first_line}".rstrip(": "), *options])
