"""A client that pushes a whole model as fast as it is acknowledged, as a job for a crew."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from benchmarks.contestants.fleet import Access


class ModelPushing:
    """One client. A thread for each group of chunks, as a replica has; each keeps its own clock."""

    def __init__(self, rank: int, size: int, access: Access, same_machine: bool) -> None:
        self._rank = rank
        options: dict[str, Any] = {}
        if same_machine:
            import torch

            from manyhands.parameter_server.client.dialling import OwnMemory
            from manyhands.transport.arena import Arena

            line = torch.full((access.shards.floats,), 1e-3)
            self._arena = Arena.with_room_for([line])
            self._values = self._arena.place(line).numpy()
            options = {"same_machine": True, "own": OwnMemory.of(self._arena)}
        else:
            self._values = np.full(access.shards.floats, 1e-3, np.float32)
        self._client = access.client(purpose="measure", **options)
        self._client.start()
        self._floats = sum(chunk.floats for chunk in access.shards.chunks)

    def run(self, seconds: float, clients: int) -> float:
        """Models pushed and acknowledged per second, for so long, if among the first `clients`."""
        if self._rank >= clients:
            return 0.0
        began = time.perf_counter()
        shares = [0.0] * len(self._client.servers)  # of a model, that each group has pushed

        def push(number: int) -> None:
            group = self._client.servers[number]
            floats = int(group.ranges.counts.sum())
            while time.perf_counter() - began < seconds:
                group.push(self._values, rate=1e-3, steps=1)
                shares[number] += floats / self._floats

        # A group without a chunk would be answered at once, again and again, in everyone's way.
        busy = [n for n in range(len(shares)) if self._client.servers[n].ranges.counts.sum()]
        threads = [threading.Thread(target=push, args=(n,)) for n in busy]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(shares) / (time.perf_counter() - began)
