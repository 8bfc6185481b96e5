"""`manyhands drain`: empty a parameter server of a running run and let it leave."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from manyhands.cli.failures import Debug, one_line_errors

_LOOK_EVERY_S = 0.2


@one_line_errors
def drain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run under way.")],
    server: Annotated[int, typer.Argument(min=0, metavar="SERVER", help="The server's number.")],
    wait: Annotated[bool, typer.Option(help="Wait until the server has left.")] = True,
    debug: Debug = False,
) -> None:
    """Empty a parameter server and let it leave, while training goes on.

    What it serves is served by others at once; its copies are made anew on the servers that stay,
    and then its process ends.

    \b
    Examples:
      manyhands drain runs/mnist-20261115-204201 2
      manyhands drain runs/mnist-20261115-204201 2 --no-wait
    """
    from manyhands.cli.asking import ask_run

    answer = ask_run(run, {"command": "drain", "server": server})
    typer.echo(answer["message"])
    if wait:
        while _is_there(run, server):
            time.sleep(_LOOK_EVERY_S)
        typer.echo(f"Server {server} has left.")


def _is_there(run: Path, server: int) -> bool:
    from manyhands.cli.asking import ask_run
    from manyhands.errors import ConfigError, ServerUnavailable

    try:
        answer = ask_run(run, {"command": "servers"})
    except ConfigError:
        return True  # the controller is being replaced: ask again
    except ServerUnavailable:
        return False  # the run is over, and all its servers have left
    return server in [one["server"] for one in answer["servers"]]
