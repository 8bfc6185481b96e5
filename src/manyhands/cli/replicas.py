"""`manyhands replicas`: see the replicas of a running run, add some, remove some."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from manyhands.cli.failures import Debug, one_line_errors

_HEADINGS = ("replica", "process", "samples/s")


@one_line_errors
def replicas(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run under way.")],
    add: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Let N more replicas join.")
    ] = None,
    remove: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Let N replicas leave.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Show the replicas of a running run, and add or remove some.

    The work that a replica leaves behind is done by the others: training goes on meanwhile.

    \b
    Examples:
      manyhands replicas runs/mnist-20261115-204201
      manyhands replicas runs/mnist-20261115-204201 --add 2
      manyhands replicas runs/mnist-20261115-204201 --remove 1
    """
    from manyhands.cli.asking import ask_run

    for line in _lines(ask_run(run, _request(add, remove))):
        typer.echo(line)


def _request(add: int | None, remove: int | None) -> dict[str, Any]:
    from manyhands.errors import ConfigError

    if add is not None and remove is not None:
        raise ConfigError(f"--add {add} and --remove {remove} are both given; give one of them.")
    if add is not None:
        return {"command": "add", "count": add}
    if remove is not None:
        return {"command": "remove", "count": remove}
    return {"command": "replicas"}


def _lines(answer: Mapping[str, Any]) -> list[str]:
    """What the run said, and a row for each replica."""
    from manyhands.cli.tables import table

    rows = [
        (str(one["replica"]), str(one["pid"]), f"{one['samples_per_s']:,.0f}")
        for one in answer.get("replicas", [])
    ]
    message = [str(answer["message"])] if answer.get("message") else []
    return [*message, *table(_HEADINGS, rows)]
