"""The nearest known name: what to answer when somebody mistypes one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`" Did you mean 'lr'?"` with a leading space, or nothing when no known name is near."""
    lowered = {candidate.lower(): candidate for candidate in known}
    matches = get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    return f" Did you mean {lowered[matches[0]]!r}?" if matches else ""


def listed(names: Iterable[str]) -> str:
    """Names in a sentence: `a, b, c`, or `none` when there are none."""
    return ", ".join(names) or "none"
