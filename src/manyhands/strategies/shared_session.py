"""What sessions over shared memory have in common: the arenas, the workers, and their end."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence

import torch

from manyhands.launch.local import Task
from manyhands.replica.pool import WorkerPool
from manyhands.replica.shared_weights import share, unshare
from manyhands.strategies.strategy import Session, TrainingJob, checked_state
from manyhands.transport.arena import Arena


class SharedSession(Session):
    """A session whose model, optimizer state and data lie in shared memory while it lasts."""

    def __init__(
        self,
        job: TrainingJob,
        workers: int,
        *,
        channels_last: bool = False,
        by_rows: Collection[str] = (),
    ) -> None:
        self._job = job
        self._workers = workers
        arena, self._weights = share(
            job.model,
            job.rule,
            workers=workers,
            averaging=job.ema is not None,
            channels_last=channels_last,
            by_rows=by_rows,
        )
        self._arenas = [arena]
        self._pool = WorkerPool(self._task, workers=workers, arenas=self._arenas)

    @abstractmethod
    def _task(self, number: int) -> Task:
        """What a worker runs."""

    def _place(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies of these in shared memory, for every worker that is started from now on."""
        try:
            arena = Arena.with_room_for(tensors)
            self._arenas.append(arena)
            return [arena.place(tensor) for tensor in tensors]
        except BaseException:
            SharedSession.close(self)  # a subclass may not be complete yet
            raise

    def averaged(self) -> dict[str, torch.Tensor] | None:
        return dict(self._weights.averaged) if self._job.ema else None

    def optimizer_state(self) -> dict[str, torch.Tensor]:
        return self._weights.named_states(self._job.rule)

    def load(
        self,
        optimizer: dict[str, torch.Tensor],
        averaged: dict[str, torch.Tensor] | None,
        step: int,
    ) -> None:
        del step  # a step's number follows from its batch's
        weights = self._weights
        checked_state(self.optimizer_state(), optimizer, "optimizer state")
        weights.load_states(self._job.rule, optimizer)
        if self._job.ema is not None:
            checked_state(weights.averaged, averaged or {}, "average")
            for name, tensor in weights.averaged.items():
                tensor.copy_((averaged or {})[name])

    def close(self) -> None:
        try:
            self._pool.close()
        finally:
            unshare(self._job.model)
            for arena in self._arenas:
                arena.close()
