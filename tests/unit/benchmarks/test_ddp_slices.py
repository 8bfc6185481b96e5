"""DDP peers must end a slice at the same step: one step more on one side would wait for ever."""

from __future__ import annotations

import threading
import time

import torch

from benchmarks.contestants.torch_training import DistributedDataParallel, Slice


class LockStep(DistributedDataParallel):
    """DDP's timing without its processes: a step ends when every member has reached its middle."""

    def __init__(self, rank: int, meeting: threading.Barrier, last_step: torch.Tensor) -> None:
        self._rank, self._last_step, self._meeting = rank, last_step, meeting
        self._batch = 4

    def _step(self) -> None:
        self._meeting.wait(timeout=30.0)
        time.sleep(0.001 * self._rank)  # the others lag behind the first, which decides the end


def test_all_members_do_the_same_number_of_steps() -> None:
    meeting, last_step = threading.Barrier(3), torch.tensor([-1])
    slices: dict[int, Slice] = {}

    def work(rank: int) -> None:
        slices[rank] = LockStep(rank, meeting, last_step).run(0.05)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60.0)

    assert len(slices) == 3
    assert len({s.images for s in slices.values()}) == 1
    assert slices[0].images == 4 * (int(last_step) + 1)
