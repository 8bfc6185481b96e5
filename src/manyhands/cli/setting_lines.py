"""Settings as aligned lines: `lr=0.05  float  learning rate`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyhands.recipes.settings import Setting


def setting_lines(settings: Iterable[Setting], nothing: str) -> list[str]:
    """A line for each setting with its default, type and meaning; `nothing` when there are none."""
    from manyhands.recipes.conversion import shown, type_name

    rows = [(f"{s.name}={shown(s.default)}", type_name(s.type), s.description) for s in settings]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    lines = [
        f"  {pair:<{widths[0]}}  {kind:<{widths[1]}}  {description}".rstrip()
        for pair, kind, description in rows
    ]
    return lines or [f"  {nothing}"]
