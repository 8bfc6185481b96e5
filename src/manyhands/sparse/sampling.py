"""Sampling: how many of the neurons that the hash tables find become active, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from manyhands.errors import ConfigError

CHOICES = ("vanilla", "topk", "threshold")


@dataclass(frozen=True)
class Sampling:
    """Which neurons are computed for an input, or for a batch where it shares one active set.

    The true labels always are, while training. Where a batch shares, every sample adds its
    `hardest` neurons: of those that the tables name for it, the ones with the largest outputs that
    are not its labels. Otherwise, or as well, at most `limit` come from the tables by `choice`:

    - "topk": the neurons found most often, over all tables (and all samples that share);
    - "threshold": the same, but only those found at least `votes` times;
    - "vanilla": tables are visited in random order until `limit` neurons are found: the fastest,
      and the least selective.

    Random neurons fill the set up to `floor`: without any, a neuron that is wrongly far from
    everything would never be pushed away. None stands for a number that suits the layer
    (`resolved`); with `hardest` and `limit` both None a batch that shares takes the hardest of each
    sample, and a single sample those that are found most often.
    """

    choice: Literal["vanilla", "topk", "threshold"] = "topk"
    limit: int | None = None
    floor: int | None = None
    votes: int = 2
    hardest: int | None = None

    def __post_init__(self) -> None:
        if self.choice not in CHOICES:
            names = ", ".join(f'"{name}"' for name in CHOICES)
            raise ConfigError(f"Sampling: choice is {self.choice!r}; expected one of {names}.")
        for name in ("limit", "floor", "hardest"):
            value = getattr(self, name)
            if value is not None and not _is_whole(value, least=0):
                raise ConfigError(
                    f"Sampling: {name} is {value!r}; expected a whole number >= 0, or None."
                )
        if not _is_whole(self.votes, least=1):
            raise ConfigError(f"Sampling: votes is {self.votes!r}; expected a whole number >= 1.")

    def resolved(self, neurons: int, share: str) -> Sampling:
        """With numbers instead of None, for a layer of so many neurons.

        The numbers for None leave at least three quarters of a small layer out: computing more
        would cost as much as computing all.
        """
        hardest, limit, floor = self.hardest, self.limit, self.floor
        if hardest is None:
            by_sample = share == "batch" and limit is None
            hardest = max(1, min(_HARDEST, neurons // _NEURONS_FOR_ONE)) if by_sample else 0
        if limit is None:
            limit = 0 if hardest and share == "batch" else min(_LIMIT, neurons // 16)
        if floor is None:
            floor = min(_FLOORS[share], neurons // 4)
        return replace(self, hardest=hardest, limit=min(limit, neurons), floor=min(floor, neurons))


_HARDEST, _NEURONS_FOR_ONE = 8, 4000  # a small layer gives fewer to each sample
_LIMIT = 500
_FLOORS = {"batch": 4000, "sample": 600}  # by who shares an active set


def _is_whole(value: object, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
