"""`manyhands resume`: go on with a run from its last checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from manyhands.cli.failures import Debug, one_line_errors


@one_line_errors
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that a run left.")],
    epochs: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Epochs in all, counting those already done."),
    ] = None,
    progress: Annotated[bool, typer.Option(help="Show how training goes, epoch by epoch.")] = True,
    debug: Debug = False,
) -> None:
    """Go on with a run from its last checkpoint.

    It may have finished, been stopped with Ctrl-C, or been killed at any moment.

    \b
    Examples:
      manyhands resume runs/mnist-20261115-204201
      manyhands resume runs/mnist-20261115-204201 --epochs 40
    """
    from manyhands.cli.building import rebuild
    from manyhands.cli.fitting import fit_and_report, typed
    from manyhands.cli.records import finished_epochs, recipe_table
    from manyhands.run.directory import RunDirectory

    directory = RunDirectory.open(run)
    instead = f'call trainer.fit(..., resume="{directory.path}")'
    table = recipe_table(directory, "resume", instead)
    prepared = rebuild(table, {} if epochs is None else {"epochs": epochs})
    done = finished_epochs(directory)
    if done >= prepared.recipe.epochs:
        further = f"manyhands resume {typed(directory.path)} --epochs {done * 2}"
        typer.echo(f"The run has done all of its epochs ({done}). To train on: {further}")
        return
    fit_and_report(prepared, resume=directory.path, progress=progress)
