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
    from manyhands.errors import ConfigError
    from manyhands.run.directory import RunDirectory
    from manyhands.transport.control import ask

    request = _request(add, remove)
    answer = ask(RunDirectory.open(run).path, request)
    if not answer.get("ok"):
        raise ConfigError(str(answer.get("message") or "The run refuses without a reason."))
    for line in _table(answer):
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


def _table(answer: Mapping[str, Any]) -> list[str]:
    """What the run said, and a row for each replica."""
    rows = [
        (str(one["replica"]), str(one["pid"]), f"{one['samples_per_s']:,.0f}")
        for one in answer.get("replicas", [])
    ]
    widths = [max(map(len, column)) for column in zip(_HEADINGS, *rows, strict=True)]
    table = [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        for row in (_HEADINGS, *rows)
    ]
    message = [str(answer["message"])] if answer.get("message") else []
    return [*message, *table]
