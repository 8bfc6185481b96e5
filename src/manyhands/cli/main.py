"""The `manyhands` command: puts the commands together.

Nothing here or at the top of a command's file imports torch, so that `--help` answers at once.
"""

from __future__ import annotations

import typer

from manyhands.cli.doctor import doctor
from manyhands.cli.drain import drain
from manyhands.cli.evaluate import evaluate
from manyhands.cli.export import export
from manyhands.cli.recipes import recipes
from manyhands.cli.replicas import replicas
from manyhands.cli.resume import resume
from manyhands.cli.servers import servers
from manyhands.cli.strategies import strategies
from manyhands.cli.train import train

_HELP = """Train neural networks on the CPUs you already have.

A first run, under a minute on two cores:

    manyhands train mnist_mlp

Your own model: write a file with a function build() that returns a Recipe, then

    manyhands train my_recipe.py --workers 4

Every run leaves a folder with its weights, its log and a picture of its learning curve; the
commands below that take a RUN take the path of that folder. Each one has examples: manyhands
train --help.
"""

app = typer.Typer(
    name="manyhands",
    help=_HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
)


def _print_version(asked: bool) -> None:
    if asked:
        from manyhands.cli.machine import own_version

        typer.echo(f"manyhands {own_version() or '(not installed)'}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Print the version."
    ),
) -> None:
    del version


_COMMANDS = (
    train,
    evaluate,
    resume,
    replicas,
    servers,
    drain,
    export,
    recipes,
    strategies,
    doctor,
)

for _command in _COMMANDS:
    app.command()(_command)


def main() -> None:
    """Run the command line; the process ends with the command's exit code."""
    app(prog_name="manyhands")
