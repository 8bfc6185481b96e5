"""Putting a request to a run under way, and its refusals into one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def ask_run(run: Path, request: dict[str, Any]) -> dict[str, Any]:
    """The run's answer; ConfigError with its own sentence when it refuses."""
    from manyhands.errors import ConfigError
    from manyhands.run.directory import RunDirectory
    from manyhands.transport.control import ask

    answer = ask(RunDirectory.open(run).path, request)
    if not answer.get("ok"):
        raise ConfigError(str(answer.get("message") or "The run refuses without a reason."))
    return dict(answer)
