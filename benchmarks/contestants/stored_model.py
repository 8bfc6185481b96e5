"""A model on the disk, ours and PyTorch's, and how long it takes to have it back in memory.

Both files hold the same random weights and nothing else. `cold` asks the kernel to drop them from
its cache first, as after a power cut.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness.rounds import Measure, Rounds, alternate
from manyhands import optim
from manyhands.launch.local import close_all, start_role
from manyhands.optim.native import rule_spec
from manyhands.parameter_server.client.parameter_client import ParameterClient
from manyhands.parameter_server.server import ServerSettings
from manyhands.parameter_server.server_task import ParameterServerTask
from manyhands.parameter_server.shard_map import ParameterSpec, ShardMap, make_shard_map
from manyhands.parameter_server.store.chunk_snapshot import SnapshotHeader, pack
from manyhands.parameter_server.store.folder import SEGMENT_BYTES, Store, cut_of
from manyhands.parameter_server.store.restoring import StoredModel, read_flat

RULE = rule_spec(optim.SGD(lr=0.1))
SIDE = 4096  # of a square parameter: 64 MB
PARAMETER_BYTES = SIDE * SIDE * 4


@dataclass(frozen=True)
class OnDisk:
    """The same model twice."""

    shards: ShardMap
    store: Path
    torch_file: Path

    @classmethod
    def write(cls, folder: Path, size_bytes: int, *, servers: int) -> OnDisk:
        count = max(1, size_bytes // PARAMETER_BYTES)
        specs = [ParameterSpec(f"layer{number}.weight", (SIDE, SIDE)) for number in range(count)]
        shards = make_shard_map(specs, servers=servers, lanes=1)
        weights = np.random.default_rng(0).standard_normal(shards.floats, np.float32)
        (folder / "store").mkdir()
        _write_store(Store(folder / "store"), shards, weights)
        tensors = {
            spec.name: torch.from_numpy(weights[start : start + spec.floats]).reshape(spec.shape)
            for spec, start in zip(shards.parameters, shards.starts, strict=True)
        }
        # Each tensor by itself: views of one array would be saved as the whole array.
        torch.save({name: tensor.clone() for name, tensor in tensors.items()}, folder / "model.pt")
        model = cls(shards, folder / "store", folder / "model.pt")
        os.sync()  # what is still to be written would weigh on whoever reads first
        return model

    @property
    def bytes(self) -> int:
        return self.shards.floats * 4

    def files(self) -> Iterator[Path]:
        yield self.torch_file
        yield from self.store.iterdir()

    def read(self, shards: ShardMap | None = None) -> StoredModel:
        """From our store, onto this cut or another."""
        shards = shards or self.shards
        return read_flat([self.store], shards, [RULE] * len(shards.parameters))

    def check(self) -> None:
        """Both must hold the same."""
        ours, theirs = self.read().weights, torch.load(self.torch_file, weights_only=True)
        for spec, start in zip(self.shards.parameters, self.shards.starts, strict=True):
            mine = ours[start : start + spec.floats].reshape(spec.shape)
            if not np.array_equal(mine, theirs[spec.name].numpy()):
                raise RuntimeError(f"{spec.name} was read back as something else")

    def seconds_onto_servers(self, servers: int) -> float:
        """From the files to the memory of so many new servers, over loopback."""
        shards = make_shard_map(self.shards.parameters, servers=servers, lanes=1)
        rules, token = [RULE] * len(shards.parameters), secrets.token_hex(16)
        tasks = [
            ParameterServerTask(shards, server, rules, ServerSettings(), token)
            for server in range(servers)
        ]
        roles = [start_role(task, name=f"server {number}") for number, task in enumerate(tasks)]
        try:
            endpoints = [role.receive().endpoint for role in roles]
            with ParameterClient(shards, endpoints, token=token, admin=True) as client:
                began = time.perf_counter()
                client.set_weights(self.read(shards).weights)
                return time.perf_counter() - began
        finally:
            close_all(roles)

    def race(self, *, cold: bool, rounds: int) -> Rounds:
        """Models per second, ours and PyTorch's."""

        def timed(load: Measure) -> Measure:
            def turn() -> float:
                for path in self.files() if cold else ():
                    _forget(path)
                began = time.perf_counter()
                load()
                return 1 / (time.perf_counter() - began)

            return turn

        def ours() -> float:
            return float(self.read().weights[0])

        def theirs() -> float:
            return float(len(torch.load(self.torch_file, weights_only=True)))

        return alternate({"ours": timed(ours), "torch": timed(theirs)}, rounds=rounds)


def _write_store(store: Store, shards: ShardMap, weights: np.ndarray) -> None:
    rules = [RULE] * len(shards.parameters)
    waiting = list(shards.chunks)
    while waiting:
        with store.segment() as writer:
            while waiting and writer.size_bytes < SEGMENT_BYTES:
                chunk = waiting.pop(0)
                header = SnapshotHeader(1, 1, 1, 1, chunk.floats, 0)
                values = weights[chunk.start : chunk.start + chunk.floats]
                writer.add(cut_of(chunk, shards, rules), pack(header, [values]))


def _forget(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)  # what is still to be written can't be dropped
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
