"""Clients that push whole numbers in every form and keep count: the weights are known exactly.

Each push is one of a few patterns of small integers, dense, as factors and as rows, and its client
counts how often each of them was acknowledged. Sums of such integers are exact in floats, so one
lost push, or one applied twice, shows in the weights.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.contestants.fleet import Access
from manyhands.parameter_server.client.parameter_client import ParameterClient
from manyhands.parameter_server.client.server_link import ServerLink
from manyhands.parameter_server.shard_map import Form, ShardMap

PATTERNS = 16
SAMPLES = 2  # vectors in a push of factors
RETRY_S = 120.0

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pushed:
    """A slice of a client's pushes, all acknowledged."""

    counts: Counts  # of each pattern, since the client began
    waits_s: tuple[float, ...]  # of each push in this slice


@dataclass(frozen=True, slots=True)
class Pattern:
    """One push to everything, and what it adds up to."""

    dense: Floats  # flat
    factors: dict[int, tuple[Floats, Floats]]  # by parameter: activations, errors
    rows: dict[int, tuple[Rows, Floats]]
    effect: Floats  # flat


def pattern(shards: ShardMap, client: int, number: int) -> Pattern:
    """Integers from -3 to 3, or products of them."""
    random = np.random.default_rng((client, number))

    def integers(*shape: int) -> Floats:
        return random.integers(-3, 4, size=shape).astype(np.float32)

    found = Pattern(
        np.zeros(shards.floats, np.float32), {}, {}, np.zeros(shards.floats, np.float32)
    )
    for parameter, (spec, start) in enumerate(zip(shards.parameters, shards.starts, strict=True)):
        place = slice(start, start + spec.floats)
        if spec.form is Form.FACTORS:
            a, d = integers(SAMPLES, spec.row_floats), integers(SAMPLES, spec.rows)
            found.factors[parameter] = a, d
            found.effect[place] = (d.T @ a).ravel()
        elif spec.form is Form.ROWS:
            rows = np.sort(random.choice(spec.rows, size=spec.rows // 4, replace=False))
            values = integers(len(rows), spec.row_floats)
            found.rows[parameter] = rows, values
            found.effect[place].reshape(spec.rows, -1)[rows] = values
        else:
            found.dense[place] = found.effect[place] = integers(spec.floats)
    return found


def expected(shards: ShardMap, counts: list[Counts]) -> Floats:
    """The weights after all these pushes, each applied once to zeros by `w -= push`."""
    total = np.zeros(shards.floats, np.float64)
    for client, pushed in enumerate(counts):
        for number, times in enumerate(pushed):
            total -= float(times) * pattern(shards, client, number).effect
    return total.astype(np.float32)


class WholeNumbers:
    """One client's process: a job for a crew. Every second client takes the same-machine way."""

    def __init__(self, rank: int, size: int, access: Access) -> None:
        self._patterns = [pattern(access.shards, rank, number) for number in range(PATTERNS)]
        self._out = np.zeros(access.shards.floats, np.float32)
        self._counts = np.zeros(PATTERNS, np.int64)
        self._random = np.random.default_rng(rank)
        self._client: ParameterClient = access.client(
            same_machine=rank % 2 == 1, retry_s=RETRY_S, purpose=f"whole numbers {rank}"
        )
        self._client.start()

    def push_for(self, seconds: float) -> Pushed:
        """Push until the time is over and the last push was acknowledged."""
        waits_s = []
        ends = time.monotonic() + seconds
        while (began := time.monotonic()) < ends:
            number = int(self._random.integers(PATTERNS))
            for group in self._client.servers:
                self._push(group, self._patterns[number])
            self._counts[number] += 1
            waits_s.append(time.monotonic() - began)
        return Pushed(self._counts.copy(), tuple(waits_s))

    def _push(self, group: ServerLink, pushed: Pattern) -> None:
        if self._random.random() < 0.75:
            group.push(pushed.dense, rate=1.0, steps=1)
        else:
            group.push_pull(pushed.dense, self._out, rate=1.0, steps=1)
        for parameter, (a, d) in pushed.factors.items():
            group.push_factors(parameter, a, d, rate=1.0, steps=1)
        group.push_rows(pushed.rows, rate=1.0, steps=1)

    def weights(self) -> Floats:
        """All weights as they are now."""
        self._out[:] = 0.0
        self._client.pull(self._out)
        return self._out.copy()
