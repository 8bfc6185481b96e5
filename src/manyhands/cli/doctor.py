"""`manyhands doctor`: what this machine has, what is missing, what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from manyhands.cli.failures import EXIT_FAILED, Debug, one_line_errors

if TYPE_CHECKING:
    from manyhands.cli.machine import Finding


@one_line_errors
def doctor(debug: Debug = False) -> None:
    """Look at this machine and say what is missing.

    Shows versions, cores, SIMD, memory, huge pages, the compiler and free disk space. The exit
    code is 1 only when training can't work here.

    \b
    Example:
      manyhands doctor
    """
    from manyhands.cli.machine import examine

    findings = examine(Path.cwd())
    for line in report(findings):
        typer.echo(line)
    if any(finding.fatal for finding in findings):
        raise typer.Exit(EXIT_FAILED)


def report(findings: list[Finding]) -> list[str]:
    """The findings as lines, the advice after them, the verdict last."""
    width = max(len(finding.name) for finding in findings)
    lines = [f"{finding.name:<{width}}  {finding.value}" for finding in findings]
    advised = [finding for finding in findings if finding.advice]
    if advised:
        lines += ["", *(f"{finding.name}: {finding.advice}" for finding in advised)]
    return [*lines, "", _verdict(findings)]


def _verdict(findings: list[Finding]) -> str:
    missing = [finding.name for finding in findings if finding.fatal]
    if missing:
        return f"Training can't work here yet: {', '.join(missing)} missing; see above."
    if any(finding.advice for finding in findings):
        return "Training works here; the advice above would make it better."
    return "Everything is here. Try: manyhands train mnist_mlp"
