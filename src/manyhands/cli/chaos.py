"""What `--chaos` asks of a strategy: something goes wrong every few seconds, by a seed."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from manyhands.errors import ConfigError

_EVERY_S = 4.0
_SERVERS = 3
_SEED = "faults_chaos_seed"


def chaotic(
    strategy: str | None, options: Mapping[str, Any], seed: int | None
) -> tuple[str, dict[str, Any]]:
    """The strategy and its options, with chaos added; what was asked for stays."""
    if strategy not in (None, "downpour"):
        raise ConfigError(
            f"--chaos needs parameter servers that can be lost, and the strategy {strategy} has "
            "none: leave --strategy out, or choose downpour."
        )
    if seed is not None and _SEED in options:
        raise ConfigError(f"The seed of the chaos is given twice: --chaos-seed and {_SEED}.")
    chosen = secrets.randbelow(1 << 31) if seed is None else seed
    defaults = {"servers": _SERVERS, "faults_chaos_every_s": _EVERY_S, _SEED: chosen}
    return "downpour", {**defaults, **options}
