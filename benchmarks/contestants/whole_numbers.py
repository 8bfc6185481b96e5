"""Clients that push whole numbers and keep count: what the weights must be is known exactly.

Each push is one of a few arrays of small integers, and its client counts how often each of them was
acknowledged. Sums of such integers are exact in floats, so one lost push, or one applied twice,
shows in the weights.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.contestants.fleet import Access
from manyhands.parameter_server.client import ParameterClient
from manyhands.parameter_server.shard_map import ShardMap

PATTERNS = 16
RETRY_S = 120.0

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pushed:
    """A slice of a client's pushes, all acknowledged."""

    counts: Counts  # of each pattern, since the client began
    waits_s: tuple[float, ...]  # of each push in this slice
    finished_s: tuple[float, ...]  # by the machine's monotonic clock


def patterns(shards: ShardMap, client: int) -> npt.NDArray[np.float32]:
    """The arrays that a client pushes: integers from -3 to 3 where a parameter is."""
    random = np.random.default_rng(client)
    found = random.integers(-3, 4, size=(PATTERNS, shards.floats)).astype(np.float32)
    return found * is_used(shards)


def is_used(shards: ShardMap) -> npt.NDArray[np.bool_]:
    """Which places of a flat array hold a parameter's floats."""
    used = np.zeros(shards.floats, bool)
    for chunk in shards.chunks:
        used[chunk.start : chunk.start + chunk.floats] = True
    return used


def expected(shards: ShardMap, counts: list[Counts]) -> npt.NDArray[np.float32]:
    """The weights after all these pushes, each applied once to zeros by `w -= push`."""
    total = np.zeros(shards.floats, np.float64)
    for client, pushed in enumerate(counts):
        for pattern, times in zip(patterns(shards, client), pushed, strict=True):
            total -= float(times) * pattern.astype(np.float64)
    return total.astype(np.float32)


class WholeNumbers:
    """One client's process: a job for a crew. Every second client takes the same-machine way."""

    def __init__(self, rank: int, size: int, access: Access, *, seed: int = 0) -> None:
        self._access = access
        self._values = patterns(access.shards, rank)
        self._out = np.zeros(access.shards.floats, np.float32)
        self._counts = np.zeros(PATTERNS, np.int64)
        self._random = np.random.default_rng((seed, rank))
        self._client: ParameterClient = access.client(
            same_machine=rank % 2 == 1, retry_s=RETRY_S, purpose=f"whole numbers {rank}"
        )
        self._client.start()

    def push_for(self, seconds: float) -> Pushed:
        """Push until the time is over and the last push was acknowledged."""
        waits_s, finished_s = [], []
        clock = time.monotonic
        ends = clock() + seconds
        while (began := clock()) < ends:
            self._push(int(self._random.integers(PATTERNS)))
            finished_s.append(clock())
            waits_s.append(finished_s[-1] - began)
        return Pushed(self._counts.copy(), tuple(waits_s), tuple(finished_s))

    def _push(self, pattern: int) -> None:
        values: Any = self._values[pattern]
        for group in self._client.servers:
            if pattern % 4:
                group.push(values, rate=1.0, steps=1)
            else:
                group.push_pull(values, self._out, rate=1.0, steps=1)
        self._counts[pattern] += 1

    def weights(self) -> npt.NDArray[np.float32]:
        """All weights as they are now."""
        self._client.pull(self._out)
        return self._out.copy()
