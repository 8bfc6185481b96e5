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
    are not its labels. From the tables come as well, by `choice`:

    - "topk": the neurons found most often, over all tables (and all samples that share);
    - "threshold": the same, but only those found at least `votes` times;
    - "vanilla": tables are visited in random order until `limit` neurons are found: the fastest,
      and the least selective.

    At most `limit` of them are taken. Random neurons fill the set up to `floor`: without any, a
    neuron that is wrongly far from everything would never be pushed away. None stands for a number
    that suits the layer (`resolved`).
    """

    choice: Literal["vanilla", "topk", "threshold"] = "topk"
    limit: int | None = None
    floor: int | None = None
    votes: int = 2
    hardest: int = 0

    def __post_init__(self) -> None:
        if self.choice not in CHOICES:
            names = ", ".join(f'"{name}"' for name in CHOICES)
            raise ConfigError(f"Sampling: choice is {self.choice!r}; expected one of {names}.")
        for name in ("limit", "floor"):
            value = getattr(self, name)
            if value is not None and not _is_whole(value, least=0):
                raise ConfigError(
                    f"Sampling: {name} is {value!r}; expected a whole number >= 0, or None."
                )
        if not _is_whole(self.hardest, least=0):
            raise ConfigError(
                f"Sampling: hardest is {self.hardest!r}; expected a whole number >= 0."
            )
        if not _is_whole(self.votes, least=1):
            raise ConfigError(f"Sampling: votes is {self.votes!r}; expected a whole number >= 1.")

    def resolved(self, neurons: int, share: str) -> Sampling:
        """With numbers instead of None, for a layer of so many neurons.

        The numbers for None leave at least three quarters of a small layer out: computing more
        would cost as much as computing all. Most of an active set is drawn at random: beyond a few
        hundred, more neurons that were found make a net worse at labels that are alike.
        """
        limit, floor = _DEFAULTS[share]
        limit, floor = min(limit, neurons // 16), min(floor, neurons // 4)
        return replace(
            self,
            limit=min(limit if self.limit is None else self.limit, neurons),
            floor=min(floor if self.floor is None else self.floor, neurons),
        )


# The most from the tables and the floor, by who shares an active set.
_DEFAULTS = {"batch": (500, 4000), "sample": (500, 600)}


def _is_whole(value: object, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
