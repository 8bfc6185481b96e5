"""`manyhands export`: a run's weights as one safetensors file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from manyhands.cli.failures import Debug, one_line_errors


@one_line_errors
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that a run left.")],
    to: Annotated[
        Path, typer.Option(metavar="FILE", help="The file to write; it ends in .safetensors.")
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file when there is one already.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Write a run's weights to a safetensors file.

    \b
    Example:
      manyhands export runs/mnist-20261115-204201 --to model.safetensors

    \b
    Then, in Python:
      from safetensors.torch import load_model
      load_model(model, "model.safetensors")
    """
    from manyhands.cli.records import final_weights
    from manyhands.errors import ConfigError
    from manyhands.run.directory import RunDirectory
    from manyhands.run.weights import save_weights

    if to.suffix != ".safetensors":
        raise ConfigError(
            f"--to is {to}; expected a name that ends in .safetensors, "
            f"for example {to.with_suffix('.safetensors')}."
        )
    if to.exists() and not force:
        raise ConfigError(f"{to} exists; give --force to replace it, or another name.")
    weights = final_weights(RunDirectory.open(run))
    save_weights(to, weights)
    count = sum(tensor.numel() for tensor in weights.values())
    typer.echo(f"{to}: {len(weights)} tensors, {count:,} values")
