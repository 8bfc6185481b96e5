"""The peers of a trainer as contestants: started once, then configured and measured in slices."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from benchmarks.contestants.torch_training import (
    DistributedDataParallel,
    PlainTraining,
    SharedMemoryHogwild,
    TunedHogwild,
    images_per_second,
    share,
)
from benchmarks.harness.crew import Crew
from benchmarks.harness.machine import cores
from benchmarks.harness.rounds import Measure

PEERS = ("plain_1_thread", "plain_all_threads", "ddp_gloo", "hogwild_example")
TUNED = "hogwild_tuned"

TITLES = {
    "plain_1_thread": "PyTorch, 1 thread",
    "plain_all_threads": f"PyTorch, {cores()} threads",
    "ddp_gloo": f"DDP on gloo, {cores()} processes",
    "hogwild_example": f"PyTorch's Hogwild example, {cores()} processes",
    TUNED: "the same, channels-last and fused SGD",
}


class Peers:
    """Every peer's processes, idle unless measured. A context manager that ends them all."""

    def __init__(self, names: Iterable[str], x: torch.Tensor, y: torch.Tensor) -> None:
        self._names = tuple(names)
        self._x, self._y = x.share_memory_(), y.share_memory_()
        self._ddp_last_step = torch.full((1,), -1, dtype=torch.int64).share_memory_()
        self._crews: dict[str, Crew] = {}
        self._ends = ExitStack()

    def __enter__(self) -> Peers:
        try:
            folder = self._ends.enter_context(tempfile.TemporaryDirectory())
            for name in self._names:
                self._crews[name] = self._ends.enter_context(self._crew(name, folder))
            for crew in self._crews.values():
                crew.answers()
        except BaseException:
            self._ends.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.close()

    def _crew(self, name: str, folder: str) -> Crew:
        forms: dict[str, tuple[Callable[..., Any], int, tuple[Any, ...]]] = {
            "plain_1_thread": (PlainTraining, 1, (1,)),
            "plain_all_threads": (PlainTraining, 1, (cores(),)),
            "ddp_gloo": (
                DistributedDataParallel,
                cores(),
                (str(Path(folder) / "ddp"), self._ddp_last_step),
            ),
            "hogwild_example": (SharedMemoryHogwild, cores(), (1,)),
            TUNED: (TunedHogwild, cores(), (1,)),
        }
        job, size, arguments = forms[name]
        return Crew(name, job, size, self._x, self._y, *arguments)

    def configure(self, net: str, batch: int) -> None:
        """Build and warm up what the next slices train, everywhere."""
        for name, crew in self._crews.items():
            shared = name in ("hogwild_example", TUNED)
            model = share(net, channels_last=name == TUNED) if shared else net
            crew.tell("configure", model, batch)
        for crew in self._crews.values():
            crew.answers()

    def measures(self, seconds: float) -> dict[str, Measure]:
        """One turn of each peer, in images/s."""

        def turn(crew: Crew) -> Measure:
            return lambda: self._images_per_second(crew, seconds)

        return {name: turn(crew) for name, crew in self._crews.items()}

    def _images_per_second(self, crew: Crew, seconds: float) -> float:
        self._ddp_last_step.fill_(-1)
        crew.tell("run", seconds)
        return images_per_second(crew.answers(expected_s=seconds))
