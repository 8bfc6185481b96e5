"""`manyhands evaluate`: measure an earlier run's model on its validation data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from manyhands.cli.failures import Debug, one_line_errors

if TYPE_CHECKING:
    import torch
    from torch import nn


@one_line_errors
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that a run left.")],
    debug: Debug = False,
) -> None:
    """Measure a run's model on its validation data.

    \b
    Example:
      manyhands evaluate runs/mnist-20261115-204201
    """
    from manyhands.cli.building import rebuild
    from manyhands.cli.records import final_weights, recipe_table
    from manyhands.errors import ConfigError
    from manyhands.run.directory import RunDirectory
    from manyhands.telemetry.wording import figures

    directory = RunDirectory.open(run)
    table = recipe_table(directory, "evaluate", "call trainer.evaluate(data)")
    prepared = rebuild(table, {})
    if prepared.recipe.validation is None:
        raise ConfigError(
            f"The recipe {table['name']} has no validation data to measure on; "
            "give its Recipe a validation=."
        )
    _load(prepared.recipe.model, final_weights(directory), directory.path)
    metrics = prepared.trainer(progress=False).evaluate(prepared.recipe.validation)
    typer.echo("  ".join(figures(metrics)))


def _load(model: nn.Module, weights: dict[str, torch.Tensor], run: Path) -> None:
    from manyhands.errors import CheckpointError

    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        cause = " ".join(str(error).split())
        raise CheckpointError(
            f"The weights of {run} don't fit the model that the recipe builds now ({cause}); "
            "undo the change to the recipe."
        ) from error
