"""What the native module says and sets about the machine, and the shared counter."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from manyhands import _native


def test_the_best_instruction_set_is_chosen_and_portable_always_there() -> None:
    choices = _native.simd_choices()
    assert choices[-1] == "portable"
    assert _native.simd() in choices


def test_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'sse9'.*portable"):
        _native.use_simd("sse9")


def test_fetch_add_loses_nothing_between_threads() -> None:
    counters = torch.zeros(3, dtype=torch.int64)

    def add() -> None:
        for _ in range(2000):
            _native.fetch_add(counters, 1, 2)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.tolist() == [0, 16000, 0]
    assert _native.fetch_add(counters, 1, -1) == 16000
    with pytest.raises(IndexError):
        _native.fetch_add(counters, 3, 1)


def test_flush_denormals_holds_for_the_calling_thread_only() -> None:
    products: list[float] = []

    def multiply() -> None:
        _native.flush_denormals()
        products.append(float(np.float32(1e-30) * np.float32(1e-15)))

    thread = threading.Thread(target=multiply)
    thread.start()
    thread.join()
    assert products == [0.0]
    assert float(np.float32(1e-30) * np.float32(1e-15)) > 0.0


def test_keep_freed_memory_can_be_asked_for_twice() -> None:
    _native.keep_freed_memory()
    _native.keep_freed_memory()
