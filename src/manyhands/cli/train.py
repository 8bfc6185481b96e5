"""`manyhands train`: train a recipe and leave a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from manyhands.cli.failures import Debug, one_line_errors


@one_line_errors
def train(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A built-in recipe's name, or the path of your .py file."
        ),
    ],
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default="hogwild",
            help="hogwild: workers share one copy of the weights and never wait for each other. "
            "synchronous: every step waits for all; with one worker, plain PyTorch bit for bit. "
            "downpour: replicas of the model train apart and share what they learn through "
            "parameter servers.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Workers, in each replica; hogwild takes one per core by default.",
        ),
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Replicas of the model, for downpour.")
    ] = None,
    servers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Parameter servers, for downpour.")
    ] = None,
    strategy_set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Change another option of the strategy; may be repeated."
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Passes over the training data.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Samples in a batch.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Seed of all that is random.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
    ] = None,
    chaos: Annotated[
        bool,
        typer.Option(
            "--chaos",
            help="Kill, pause or cut off something at random every few seconds, and tell what "
            "happens. Trains with downpour, on 3 servers unless told otherwise.",
        ),
    ] = False,
    chaos_seed: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Repeat the chaos of this seed, which was printed."),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The run's folder; by default a new one in runs/."),
    ] = None,
    progress: Annotated[bool, typer.Option(help="Show how training goes, epoch by epoch.")] = True,
    debug: Debug = False,
) -> None:
    """Train a recipe.

    The run leaves a folder with the model, checkpoints, the log and a picture of its curves.

    \b
    Examples:
      manyhands train mnist
      manyhands train mnist --epochs 3 --workers 2
      manyhands train mnist --strategy synchronous --set lr=0.02 --set augment=no
      manyhands train mnist --strategy downpour --replicas 2 --servers 2
      manyhands train mnist --strategy downpour --strategy-set push_every=5
      manyhands train mnist --chaos
      manyhands train packages
      manyhands train extreme --set train=my_train.txt --set bad_lines=skip
      manyhands train my_recipe.py --run-dir runs/first

    \b
    A recipe file of your own, complete:
      import torch
      from torch import nn
      import manyhands as mh
      from manyhands.recipes import Recipe
    \b
      def build():
          x, y = torch.randn(1000, 20), torch.randint(0, 2, (1000,))
          return Recipe(model=nn.Linear(20, 2), loss=nn.CrossEntropyLoss(),
                        optimizer=mh.optim.SGD(lr=0.1), train=mh.data.arrays(x, y))
    \b
    Settings and their defaults: manyhands recipes
    Options of a strategy: manyhands strategies
    """
    from manyhands.cli.building import Request, prepare, requested_settings
    from manyhands.cli.chaos import chaotic
    from manyhands.cli.fitting import fit_and_report
    from manyhands.cli.strategy_options import requested_options
    from manyhands.recipes.loading import load_recipe

    given = {"epochs": epochs, "batch_size": batch_size, "seed": seed}
    options = {name: value for name, value in given.items() if value is not None}
    flags = {"workers": workers, "replicas": replicas, "servers": servers}
    chosen, strategy_options = strategy, requested_options(flags, strategy_set or [])
    if chaos or chaos_seed is not None:
        chosen, strategy_options = chaotic(chosen, strategy_options, chaos_seed)
    module = load_recipe(recipe)
    known = [setting.name for setting in module.settings]
    request = Request(
        recipe=module.name,
        strategy=chosen or "hogwild",
        strategy_options=strategy_options,
        settings=requested_settings(settings or [], options, known),
        options=options,
    )
    fit_and_report(prepare(module, request), run_dir=run_dir, progress=progress)
