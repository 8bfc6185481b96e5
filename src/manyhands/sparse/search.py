"""The largest outputs of an LSHLinear: exactly, or among the neurons that the tables find."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from manyhands.errors import ConfigError
from manyhands.sparse.active_product import ActiveSet, products_of_own

if TYPE_CHECKING:
    from manyhands.sparse.lsh_linear import LSHLinear

TopK = tuple[torch.Tensor, torch.Tensor]

# Outputs that lie in memory at a time: a product with a million neurons is taken in parts.
_AT_ONCE = 2**24
_CANDIDATES_PER_RESULT = 20


def check_k(layer: LSHLinear, k: int) -> None:
    """ConfigError unless there are `k` outputs to give."""
    whole = isinstance(k, (int, np.integer)) and not isinstance(k, bool)
    if not whole or not 1 <= k <= layer.out_features:
        raise ConfigError(
            f"LSHLinear: k is {k!r}; expected a whole number from 1 to the number of outputs, "
            f"{layer.out_features}."
        )


def exact_topk(layer: LSHLinear, x: torch.Tensor, k: int) -> TopK:
    """The `k` largest of all outputs for each row of `x`, largest first, and their numbers."""
    parts = torch.split(x, max(1, _AT_ONCE // layer.out_features))
    found = [F.linear(part, layer.weight, layer.bias).topk(k) for part in parts]
    return torch.cat([f.values for f in found]), torch.cat([f.indices for f in found])


def approximate_topk(layer: LSHLinear, x: torch.Tensor, k: int) -> TopK:
    """The `k` largest outputs among the neurons in the buckets that each row of `x` falls into.

    Where they are fewer, neurons at random make up the number.
    """
    index = layer.index
    if index.changed:
        index.refresh(layer.weight.detach(), layer.thread_count)
    offsets, rows = index.choose_each(
        x,
        None,
        None,
        choice="topk",
        limit=min(layer.out_features, max(_CANDIDATES_PER_RESULT * k, layer.most_active)),
        floor=k,
        votes=1,
        seed=layer.seed,
        threads=layer.thread_count,
    )
    active = ActiveSet(torch.as_tensor(rows), torch.as_tensor(offsets))
    outputs = products_of_own(x, layer.weight, layer.bias, active, layer.thread_count)
    values, indices = x.new_empty(len(x), k), torch.empty(len(x), k, dtype=torch.int64)
    for sample, (start, stop) in enumerate(pairwise(offsets.tolist())):
        best = outputs[start:stop].topk(k)
        values[sample], indices[sample] = best.values, active.rows[start:stop][best.indices]
    return values, indices


def share_found(exact: torch.Tensor, found: torch.Tensor) -> float:
    """The share of the numbers in each row of `exact` that the same row of `found` has."""
    if not exact.numel():
        return 1.0
    hits = (exact.unsqueeze(2) == found.unsqueeze(1)).any(2)
    return float(hits.float().mean())
