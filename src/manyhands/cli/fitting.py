"""Training to the end of a run, and telling a person what came of it and what to do next."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from manyhands.cli.failures import Interrupted
from manyhands.run.directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from manyhands.cli.building import Prepared

_RATES = ("accuracy", "top5", "error")


def fit_and_report(
    prepared: Prepared,
    *,
    run_dir: Path | None = None,
    resume: Path | None = None,
    progress: bool = True,
) -> None:
    """Train until the epochs are done. Raises `Interrupted` on Ctrl-C, naming the run."""
    trainer = prepared.trainer(run_dir=run_dir, progress=progress)
    recipe = prepared.recipe
    result = trainer.fit(
        recipe.train, validation=recipe.validation, epochs=recipe.epochs, resume=resume
    )
    if result.reason == "interrupted":
        raise Interrupted(f"stopped; resume with: manyhands resume {shown_path(result.run_dir)}")
    typer.echo(summary(RunDirectory(result.run_dir), result.metrics, len(result.history)))


def summary(run: RunDirectory, metrics: Mapping[str, float], epochs_done: int) -> str:
    """What a finished run prints: the figures, where things are, how to go on."""
    place = shown_path(run.path)
    files = [("model", run.model_file), ("curve", run.curves_file), ("log", run.events_file)]
    return "\n".join(
        [
            figures(metrics) or f"{epochs_done} epochs done, without validation data",
            *(f"{name:<6} {os.path.relpath(file)}" for name, file in files if file.exists()),
            "next",
            f"  manyhands evaluate {place}",
            f"  manyhands resume {place} --epochs {epochs_done * 2}",
            f"  manyhands export {place} --to model.safetensors",
        ]
    )


def figures(metrics: Mapping[str, float]) -> str:
    """Metrics in one line: `accuracy 98.20%  loss 0.0612`."""
    return "  ".join(f"{name} {_figure(name, value)}" for name, value in metrics.items())


def _figure(name: str, value: float) -> str:
    return f"{value:.2%}" if name in _RATES else f"{value:.4g}"


def shown_path(path: Path) -> str:
    """A path as one would type it here: relative where that is shorter, quoted where needed."""
    relative = os.path.relpath(path)
    return shlex.quote(min(relative, str(path), key=len))
