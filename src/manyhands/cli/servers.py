"""`manyhands servers`: see the parameter servers of a running run, add some."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from manyhands.cli.failures import Debug, one_line_errors

_HEADINGS = ("server", "process", "serves", "copies", "joining", "MB", "state")


@one_line_errors
def servers(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run under way.")],
    add: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Let N more servers join.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Show the parameter servers of a running run, and add some.

    For each: its process, the buckets that it serves, those that it keeps copies of, and those
    that are being copied to it. A server that joins takes over its part while training goes on;
    manyhands drain lets one leave.

    \b
    Examples:
      manyhands servers runs/mnist-20261115-204201
      manyhands servers runs/mnist-20261115-204201 --add 1
    """
    from manyhands.cli.asking import ask_run

    request = {"command": "servers"} if add is None else {"command": "add_servers", "count": add}
    answer = ask_run(run, request)
    for line in server_lines(answer):
        typer.echo(line)


def server_lines(answer: Mapping[str, Any]) -> list[str]:
    """What the run said, and a row for each server."""
    from manyhands.cli.tables import table

    rows = [
        (
            str(one["server"]),
            str(one["pid"]),
            str(one["primaries"]),
            str(one["mirrors"]),
            str(one["joining"]),
            f"{one['bytes'] / 1e6:,.1f}",
            str(one["state"]),
        )
        for one in answer.get("servers", [])
    ]
    message = [str(answer["message"])] if answer.get("message") else []
    return [*message, *table(_HEADINGS, rows)]
