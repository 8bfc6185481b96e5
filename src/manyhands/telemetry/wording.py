"""How a run's figures are put into words, the same on a terminal, in a pipe and in a picture."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path

from manyhands.telemetry.events import EpochEnded, RunEnded, RunStarted, WorkerLost

_SHARE = re.compile(r"accuracy|precision|recall|^f1|^top\d|^error$")
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def is_share(name: str) -> bool:
    """Whether a metric of this name is a share of one."""
    return _SHARE.search(name.lower()) is not None


def figure(name: str, value: float) -> str:
    """A metric's value: shares of one as a percentage, all else with four digits."""
    if is_share(name) and 0 <= value <= 1:
        return f"{value:.2%}"
    return f"{value:.4g}"


def figures(metrics: Mapping[str, float]) -> list[str]:
    """Validation metrics, the loss last: it says whose it is, beside the training loss."""
    return [
        f"validation {loss(float(value))}"
        if name == "loss"
        else f"{name} {figure(name, float(value))}"
        for name, value in sorted(metrics.items(), key=lambda metric: metric[0] == "loss")
    ]


def loss(value: float) -> str:
    return f"loss {value:.4f}" if 1e-3 <= abs(value) < 1e4 else f"loss {value:.3g}"


def speed(samples_per_s: float, sample_name: str) -> str:
    return f"{samples_per_s:,.0f} {sample_name}/s" if math.isfinite(samples_per_s) else ""


def duration(seconds: float) -> str:
    """1.4 s, 12 s, 3:07, 2:03:07."""
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def epoch_title(epoch: int, epochs: int) -> str:
    """`epoch  3/20`, counted from 1 and as wide for the first as for the last."""
    return f"epoch {epoch + 1:>{len(str(epochs))}}/{epochs}"


def start(event: RunStarted) -> str:
    going_on = f", going on with epoch {event.first_epoch + 1}" if event.first_epoch else ""
    strategy = f"{event.strategy} with {_team(event)}"
    return (
        f"{event.model} with {event.parameters:,} parameters, {strategy}\n"
        f"{event.epochs} epochs of {event.samples_per_epoch:,} {event.sample_name}{going_on}, "
        f"in {short_path(event.run_dir)}"
    )


def _team(event: RunStarted) -> str:
    """`2 workers`, or `2 replicas, 4 workers and 2 servers`."""
    workers = counted(event.workers, "worker")
    if not event.replicas:
        return workers
    servers = f" and {counted(event.servers, 'server')}"
    return f"{counted(event.replicas, 'replica')}, {workers}{servers}"


def counted(count: int, thing: str) -> str:
    """`1 replica`, `2 replicas`."""
    return f"{count:,} {thing}{'s' if count != 1 else ''}"


def epoch_fields(event: EpochEnded, epochs: int, sample_name: str) -> list[str]:
    """The kept line of an epoch, in fields: the first ones matter most."""
    rate = event.samples / event.seconds if event.seconds > 0 else math.nan
    fields = [
        epoch_title(event.epoch, epochs),
        loss(event.train_loss),
        *figures(event.metrics),
        speed(rate, sample_name),
        duration(event.seconds),
    ]
    return [field for field in fields if field]


def worker_lost(event: WorkerLost) -> str:
    after = (
        "nobody takes its place"
        if event.replaced_by is None
        else f"process {event.replaced_by} takes its place"
    )
    return f"worker {event.worker} (process {event.pid}) died: {event.reason}; {after}"


def end(event: RunEnded) -> str:
    """Why a run failed is left to the error that it raises, so that nobody reads it twice."""
    epochs = counted(event.epochs_done, "epoch")
    words = f"{event.reason} after {epochs} and {duration(event.seconds)}"
    return "  ".join([words, *figures(event.metrics)])


def short_path(path: Path) -> str:
    """The path as one would type it here."""
    return min(os.path.relpath(path), str(path), key=len)


def harmless(text: str) -> str:
    """`text` without escape sequences and control characters, whoever wrote it."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text.replace("\r\n", "\n")))
