"""What `chaos` compares with, and which kills it allows itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.contestants.mishaps import Mishaps
from benchmarks.contestants.whole_numbers import PATTERNS, expected, pattern
from benchmarks.failover import Timeline, outcome
from manyhands.parameter_server.placement import BucketPlace, Placement
from manyhands.parameter_server.shard_map import Form, ParameterSpec, make_shard_map

SHARDS = make_shard_map(
    [
        ParameterSpec("dense", (30, 5)),
        ParameterSpec("linear", (6, 4), Form.FACTORS),
        ParameterSpec("embedding", (20, 3), Form.ROWS),
    ],
    servers=2,
    lanes=1,
)


def test_the_expected_weights_count_every_push_of_every_client() -> None:
    counts = [np.zeros(PATTERNS, np.int64), np.zeros(PATTERNS, np.int64)]
    counts[0][3], counts[1][5] = 2, 1

    by_hand = -2 * pattern(SHARDS, 0, 3).effect - pattern(SHARDS, 1, 5).effect

    np.testing.assert_array_equal(expected(SHARDS, counts), by_hand)


def test_a_pattern_touches_every_parameter() -> None:
    effect = pattern(SHARDS, 0, 0).effect

    for spec, start in zip(SHARDS.parameters, SHARDS.starts, strict=True):
        assert np.count_nonzero(effect[start : start + spec.floats])


class FakeFleet:
    """Servers that are killed in name only."""

    def __init__(self, copies: dict[int, set[int]]) -> None:
        self.controller = None
        self.servers = dict.fromkeys({s for held in copies.values() for s in held})
        self._copies = copies

    def placement(self) -> Placement:
        return Placement(1, {}, {bucket: BucketPlace(0, 1) for bucket in self._copies})

    def living_copies(self, placement: Placement, bucket: int) -> set[int]:
        return self._copies[bucket] & self.servers.keys()

    def kill(self, server: int) -> None:
        del self.servers[server]


@pytest.mark.parametrize(("server", "allowed"), [(0, True), (1, True), (2, False)])
def test_a_bucket_s_last_copy_is_never_killed(server: int, allowed: bool) -> None:
    fleet: Any = FakeFleet({7: {0, 1, 2}, 8: {1, 2}, 9: {2}})

    assert Mishaps(fleet, [], seed=1)._kill_if_safe(server) is allowed
    assert (server in fleet.servers) is not allowed


def test_a_kill_that_leaves_one_copy_forbids_the_next() -> None:
    fleet: Any = FakeFleet({7: {0, 1}})
    mishaps = Mishaps(fleet, [], seed=1)

    assert mishaps._kill_if_safe(0)
    assert not mishaps._kill_if_safe(1)


def test_a_failover_ends_with_the_last_group_s_first_push_that_began_after_the_kill() -> None:
    steps = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    first = [(0.9, 1.8), (1.8, 1.9)]  # under way at the kill, then another
    second = [(0.8, 0.9), (1.1, 2.4), (2.4, 2.5)]

    found = outcome(Timeline([first, second], steps), killed_s=1.0)

    assert found.push_s == pytest.approx(1.4)
    assert found.longest_step_s == pytest.approx(0.5)
