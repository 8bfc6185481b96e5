"""NeuronIndex: a layer's hash tables through their life: built late, refreshed, forgotten.

training batch 1     no tables: the batch may be a trial on a copy of the model
training batch 2     all neurons are hashed into the tables, once
every batch          neurons that the batch before moved are marked as changed
when a refresh is    marked neurons are hashed again, beside the training; now and then
due (`Refresh`)      new hash functions replace the old ones
weights replaced     the tables are forgotten; the next use builds them
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from manyhands import kernels
from manyhands.sparse.refresh import Refresh, Refresher

_BATCHES_WITHOUT_TABLES = 1
_SEED_BITS = 2**63 - 1
_GOLDEN_RATIO, _ODD = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9  # as in SplitMix64


class NeuronIndex:
    """The tables of one layer in one process. Copies and pickles of it are empty.

    `mark` may be called from any thread; building is done once, whoever comes first.
    """

    def __init__(self, settings: Mapping[str, Any], refresh: Refresh) -> None:
        self._settings = dict(settings)
        self._refresh = refresh
        self._lock = threading.Lock()
        self._index: kernels.LshIndex | None = None
        self._refresher: Refresher | None = None
        self._built_for = 0  # where the weights lay in memory
        self._batches = 0
        self._moved: torch.Tensor | None = None
        self._next_seed: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return NeuronIndex, (self._settings, self._refresh)

    def ready(self, weight: torch.Tensor, threads: int) -> kernels.LshIndex:
        """The tables over these weights, built now if they aren't yet."""
        index = self.current(weight)
        if index is not None:
            return index
        with self._lock:
            index = self.current(weight)
            if index is None:
                index = self._build(weight.detach(), threads)
            return index

    def current(self, weight: torch.Tensor) -> kernels.LshIndex | None:
        """The tables, if they are there and of these weights."""
        return self._index if self._built_for == weight.data_ptr() else None

    def for_batch(self, weight: torch.Tensor, threads: int) -> kernels.LshIndex | None:
        """The tables for a batch that will move the weights; none for the first one."""
        index = self.current(weight)
        if index is None:
            self._batches += 1
            if self._batches <= _BATCHES_WITHOUT_TABLES:
                return None
            index = self.ready(weight, threads)
        if self._moved is not None:  # by now the optimizer has written them
            index.mark_changed(self._moved)
            self._moved = None
        self.count_steps(1, weight)
        return index

    def will_move(self, rows: torch.Tensor) -> None:
        """These rows are about to change: they are marked when the next batch comes."""
        self._moved = rows

    def mark(self, rows: torch.Tensor) -> None:
        """These rows have changed."""
        index = self._index
        if index is not None:
            index.mark_changed(rows)

    def next_seed(self, count: int) -> int:
        """The first of the next `count` seeds. PyTorch's own plays a part: workers differ in it."""
        if self._next_seed is None:
            mixed = (self._settings["seed"] + 1) * _GOLDEN_RATIO ^ torch.initial_seed() * _ODD
            self._next_seed = mixed & _SEED_BITS
        seed = self._next_seed
        self._next_seed = (seed + count) & _SEED_BITS
        return seed

    def count_steps(self, steps: int, weight: torch.Tensor) -> None:
        """So many batches were trained on: a refresh starts if one is due."""
        index = self.current(weight)
        if index is not None and self._refresher is not None:
            self._refresher.count_steps(steps, index, weight)

    def wait_for_refreshes(self) -> None:
        """From now on training waits for a refresh, so that it repeats; the tables are dropped."""
        self.forget()
        self._refresh = replace(self._refresh, beside=False)

    def forget(self) -> None:
        """Drop the tables: the weights are others. Waits for a refresh that is under way."""
        with self._lock:
            self._drop()

    def _build(self, weight: torch.Tensor, threads: int) -> kernels.LshIndex:
        self._drop()
        index = kernels.LshIndex(**self._settings)
        index.build(weight, threads)
        self._refresher = Refresher(self._refresh, seed=self._settings["seed"], threads=threads)
        self._index, self._built_for = index, weight.data_ptr()
        return index

    def _drop(self) -> None:
        refresher, self._refresher = self._refresher, None
        self._index, self._built_for, self._moved = None, 0, None
        if refresher is not None:
            refresher.close()
