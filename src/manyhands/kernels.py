"""The native kernels: the one door to the compiled module (`native/`)."""

from manyhands._native import (
    Plan,
    Rule,
    average,
    fetch_add,
    flush_denormals,
    keep_freed_memory,
    simd,
    squared_norm,
    update,
    update_rows,
)

__all__ = [
    "Plan",
    "Rule",
    "average",
    "fetch_add",
    "flush_denormals",
    "keep_freed_memory",
    "simd",
    "squared_norm",
    "update",
    "update_rows",
]
