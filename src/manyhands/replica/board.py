"""The board: counters in shared memory that a driver and its lock-free workers keep together."""

from __future__ import annotations

import math

import torch

from manyhands import kernels


class Board:
    """Counters that driver and workers share: who has which piece, and how far everyone is.

    Written without locks: a piece's owner is written only by the worker that claimed it, a
    worker's counters only by that worker; the claim itself is one atomic addition.
    """

    FREE, DONE = 0, -1
    _NEXT, _STOP = 0, 1

    def __init__(self, counters: torch.Tensor, owners: torch.Tensor, losses: torch.Tensor) -> None:
        self._counters = counters
        self._owners = owners
        self._losses = losses

    @staticmethod
    def blank(pieces: int, workers: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The tensors of a board, to be placed in shared memory."""
        counters = torch.zeros(2 + workers, dtype=torch.int64)
        owners = torch.zeros(pieces, dtype=torch.int64)
        return counters, owners, torch.zeros(workers, dtype=torch.float64)

    def reset(self) -> None:
        """For the driver, between epochs, when no worker is training."""
        for tensor in (self._counters, self._owners, self._losses):
            tensor.zero_()

    def claim(self, worker: int) -> int | None:
        """The next free piece, or None when there is none or the epoch is being stopped."""
        if self.stopped:
            return None
        piece = kernels.fetch_add(self._counters.numpy(), self._NEXT, 1)
        if piece >= len(self._owners):
            return None
        self._owners[piece] = worker + 1
        return piece

    def finish(self, piece: int, worker: int, samples: int, loss: float) -> None:
        """Mark a piece done and add its samples and mean loss to a worker's account."""
        self._counters[2 + worker] += samples
        self._losses[worker] += loss * samples
        self._owners[piece] = self.DONE

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Pieces that are not done, whoever has them."""
        return tuple(int(p) for p in torch.nonzero(self._owners != self.DONE).flatten())

    def unfinished_of(self, worker: int) -> tuple[int, ...]:
        """Pieces that a worker claimed and did not finish."""
        return tuple(int(p) for p in torch.nonzero(self._owners == worker + 1).flatten())

    def stop(self) -> None:
        self._counters[self._STOP] = 1

    @property
    def stopped(self) -> bool:
        return bool(self._counters[self._STOP])

    @property
    def samples(self) -> int:
        return int(self._counters[2:].sum())

    @property
    def loss(self) -> float:
        samples = self.samples
        return float(self._losses.sum()) / samples if samples else math.nan
