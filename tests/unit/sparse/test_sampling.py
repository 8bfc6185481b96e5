"""Sampling as data: defaults that suit a layer, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.errors import ConfigError
from manyhands.sparse.sampling import Sampling


@pytest.mark.parametrize("share", ["batch", "sample"])
@pytest.mark.parametrize("neurons", [1, 7, 1000, 30_000, 670_091])
def test_defaults_leave_most_of_a_layer_out(neurons: int, share: str) -> None:
    sampling = Sampling().resolved(neurons, share)
    assert sampling.limit is not None
    assert sampling.floor is not None
    assert sampling.hardest is not None
    assert sampling.limit <= sampling.floor <= neurons / 4
    assert sampling.choice == "topk"
    # A batch that shares takes some for each of its samples, a sample of its own the most voted.
    found = sampling.hardest if share == "batch" else sampling.limit
    assert found > 0 or neurons < 16
    assert (sampling.limit if share == "batch" else sampling.hardest) == 0
    assert sampling.hardest <= max(1, neurons / 4000)


def test_numbers_that_were_given_stay() -> None:
    sampling = Sampling(choice="threshold", limit=700, floor=0, votes=5, hardest=3)
    assert sampling.resolved(1000, "batch") == sampling
    by_votes = Sampling(limit=700).resolved(30_000, "batch")
    assert (by_votes.limit, by_votes.hardest) == (700, 0)
    by_sample = Sampling(hardest=3).resolved(30_000, "batch")
    assert (by_sample.limit, by_sample.hardest) == (0, 3)
    neither = Sampling(hardest=0).resolved(30_000, "batch")
    assert (neither.limit, neither.hardest) == (500, 0)
    few = Sampling(limit=700, floor=900).resolved(500, "sample")
    assert (few.limit, few.floor) == (500, 500)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"choice": "best"}, 'choice is \'best\'; expected one of "vanilla", "topk", "threshold".'),
        ({"limit": -1}, "limit is -1; expected a whole number >= 0, or None."),
        ({"floor": 1.5}, "floor is 1.5; expected a whole number >= 0, or None."),
        ({"hardest": -1}, "hardest is -1; expected a whole number >= 0, or None."),
        ({"votes": 0}, "votes is 0; expected a whole number >= 1."),
        ({"votes": None}, "votes is None; expected a whole number >= 1."),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Sampling(**settings)
