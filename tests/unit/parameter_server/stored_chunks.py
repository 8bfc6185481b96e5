"""Chunks without a server: what persistence asks of one, held in arrays that a test can move."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from manyhands import optim
from manyhands.optim.native import RuleSpec, rule_spec
from manyhands.parameter_server.shard_map import ParameterSpec, ShardMap, make_shard_map
from manyhands.parameter_server.store.chunk_snapshot import SnapshotHeader, pack, read_header
from manyhands.parameter_server.store.folder import Store, cut_of

PARAMETERS = (
    ParameterSpec("large", (60, 50)),  # several chunks
    ParameterSpec("kernel", (8, 3, 5, 5)),
    ParameterSpec("bias", (41,)),
    ParameterSpec("scalar", ()),
)
MOMENTUM = rule_spec(optim.SGD(lr=0.1, momentum=0.9))


def small_map(
    parameters: Sequence[ParameterSpec] = PARAMETERS, *, servers: int = 1, chunk_bytes: int = 4096
) -> ShardMap:
    return make_shard_map(parameters, servers=servers, lanes=1, chunk_bytes=chunk_bytes)


def rules_of(shards: ShardMap, rule: RuleSpec = MOMENTUM) -> list[RuleSpec]:
    return [rule] * len(shards.parameters)


class HeldChunks:
    """All chunks of a map, with the verbs of `kernels.ChunkServer` that persistence uses."""

    def __init__(self, shards: ShardMap, *, arrays: int = 2, lease: int = 1) -> None:
        self.shards = shards
        self.lines = [np.zeros(shards.floats, np.float32) for _ in range(arrays)]
        self.versions = np.zeros(len(shards.chunks), np.int64)
        self.leases = np.full(len(shards.chunks), lease, np.int64)
        self.restored: dict[int, int] = {}
        self.collected = 0

    def fill(self, value: float, numbers: Sequence[int] | None = None) -> None:
        """One update: every float of every array becomes the value, told apart by its place."""
        for chunk in self.shards.chunks:
            if numbers is None or chunk.number in numbers:
                place = slice(chunk.start, chunk.start + chunk.floats)
                for number, line in enumerate(self.lines):
                    line[place] = value + 1000 * number + np.arange(chunk.start, place.stop) / 8
                self.versions[chunk.number] += 1

    def progress(self) -> npt.NDArray[np.int64]:
        numbers = np.arange(len(self.versions))
        return np.stack([numbers, self.leases, self.versions], axis=1)

    def collect(self, chunk: int, *, since: int = -1) -> bytes | None:
        self.collected += 1
        held = self.shards.chunks[chunk]
        header = SnapshotHeader(
            version=int(self.versions[chunk]),
            begun=int(self.versions[chunk]),
            last_lease=int(self.leases[chunk]),
            arrays=len(self.lines),
            floats=held.floats,
            clients=0,
        )
        if header.version <= since:
            return None
        return pack(header, [line[held.start : held.start + held.floats] for line in self.lines])

    def restore(self, chunk: int, snapshot: bytes, lease: int) -> None:
        held, header = self.shards.chunks[chunk], read_header(snapshot)
        floats = np.frombuffer(snapshot, np.float32, offset=40, count=header.arrays * held.floats)
        for line, values in zip(self.lines, floats.reshape(header.arrays, -1), strict=True):
            line[held.start : held.start + held.floats] = values
        self.versions[chunk] = header.version
        self.leases[chunk] = header.last_lease
        self.restored[chunk] = lease


def write_all(
    store: Store,
    held: HeldChunks,
    numbers: Sequence[int] | None = None,
    rule: RuleSpec = MOMENTUM,
) -> None:
    """Everything, or these chunks, in one segment."""
    store.refresh()
    with store.segment() as writer:
        for chunk in held.shards.chunks:
            if numbers is None or chunk.number in numbers:
                snapshot = held.collect(chunk.number)
                assert snapshot is not None
                writer.add(cut_of(chunk, held.shards, rules_of(held.shards, rule)), snapshot)
