"""Choosing a batch's active neurons: through a layer's tables, or at random before it has any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from manyhands import kernels
from manyhands.sparse.active_product import ActiveSet
from manyhands.sparse.csr import CSR

if TYPE_CHECKING:
    from manyhands.sparse.lsh_linear import LSHLinear


def choose_by_index(
    layer: LSHLinear, index: kernels.LshIndex, x: torch.Tensor, labels: CSR | None, seed: int
) -> ActiveSet:
    """The labels, neurons in the buckets of `x`, and random ones up to the floor."""
    sampling = layer.sampling
    offsets = None if labels is None else labels.offsets
    columns = None if labels is None else labels.columns
    settings: dict[str, Any] = {
        "choice": sampling.choice,
        "limit": sampling.limit,
        "floor": sampling.floor,
        "votes": sampling.votes,
        "seed": seed,
        "threads": layer.thread_count,
    }
    if layer.share == "batch":
        bias = None if layer.bias is None else layer.bias.detach()
        rows = index.choose_shared(
            x,
            offsets,
            columns,
            hardest=sampling.hardest or 0,
            weight=layer.weight.detach(),
            bias=bias,
            **settings,
        )
        return ActiveSet(torch.as_tensor(rows))
    ends, rows = index.choose_each(x, offsets, columns, **settings)
    return ActiveSet(torch.as_tensor(rows), torch.as_tensor(ends))


def choose_at_random(layer: LSHLinear, samples: int, labels: CSR | None, seed: int) -> ActiveSet:
    """The labels, and as many random neurons as the tables would give at most."""
    neurons = layer.out_features
    generator = torch.Generator().manual_seed(seed)
    count = layer.most_active if samples else 0
    anyone = torch.unique(torch.randint(neurons, (count,), generator=generator))
    own = torch.empty(0, dtype=torch.int64) if labels is None else labels.columns.long()
    if layer.share == "batch":
        return ActiveSet(torch.unique(torch.cat([own, anyone])))
    # (sample, neuron) as one number, so that sorting puts both in order.
    of_all = (torch.arange(samples).unsqueeze(1) * neurons + anyone).view(-1)
    if labels is not None:
        of_all = torch.cat([labels.row_of_entries() * neurons + own, of_all])
    pairs = torch.unique(of_all)
    offsets = torch.zeros(samples + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(pairs // neurons, minlength=samples), 0, out=offsets[1:])
    return ActiveSet(pairs % neurons, offsets)
