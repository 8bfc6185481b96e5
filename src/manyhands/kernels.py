"""The native kernels: the one door to the compiled module (`native/`)."""

from manyhands._native import (
    Link,
    Plan,
    Refused,
    Rule,
    add_and_clear,
    average,
    difference,
    fetch_add,
    flush_denormals,
    keep_freed_memory,
    merge,
    simd,
    squared_norm,
    take,
    update,
    update_rows,
)

__all__ = [
    "Link",
    "Plan",
    "Refused",
    "Rule",
    "add_and_clear",
    "average",
    "difference",
    "fetch_add",
    "flush_denormals",
    "keep_freed_memory",
    "merge",
    "simd",
    "squared_norm",
    "take",
    "update",
    "update_rows",
]
