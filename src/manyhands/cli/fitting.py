"""Training to the end of a run, and telling a person what came of it and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import typer

from manyhands.cli.building import Prepared
from manyhands.cli.failures import Interrupted, sigterm_interrupts
from manyhands.run.directory import RunDirectory
from manyhands.telemetry.wording import figures, short_path


def fit_and_report(
    prepared: Prepared,
    *,
    run_dir: Path | None = None,
    resume: Path | None = None,
    progress: bool = True,
) -> None:
    """Train until the epochs are done. Ctrl-C and SIGTERM raise `Interrupted`, naming the run."""
    trainer = prepared.trainer(run_dir=run_dir, progress=progress)
    recipe = prepared.recipe
    try:
        with sigterm_interrupts():
            result = trainer.fit(
                recipe.train, validation=recipe.validation, epochs=recipe.epochs, resume=resume
            )
    except KeyboardInterrupt as error:
        if trainer.last_run is None:
            raise
        kind = type(error) if isinstance(error, Interrupted) else Interrupted
        place = typed(trainer.last_run)
        raise kind(f"stopped; resume with: manyhands resume {place}") from error
    typer.echo(summary(RunDirectory(result.run_dir), result.metrics, len(result.history)))


def summary(run: RunDirectory, metrics: Mapping[str, float], epochs_done: int) -> str:
    """What a finished run prints: the figures, where things are, how to go on."""
    place = typed(run.path)
    files = [("model", run.model_file), ("curve", run.curves_file), ("log", run.events_file)]
    result = "  ".join(figures(metrics)) or f"{epochs_done} epochs, without validation data"
    return "\n".join(
        [
            "",
            f"result  {result}",
            *(f"{name:<6}  {short_path(file)}" for name, file in files if file.exists()),
            "",
            f"manyhands evaluate {place}",
            f"manyhands resume {place} --epochs {epochs_done * 2}",
            f"manyhands export {place} --to model.safetensors",
        ]
    )


def typed(path: Path) -> str:
    """A path as an argument of a command, quoted where the shell needs it."""
    return shlex.quote(short_path(path))
