"""The buffers of several replicas (BatchNorm's statistics) as one set."""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase


def statistics_of(model: nn.Module) -> set[str]:
    """The buffers that are means over samples, so that a mean of several replicas' is one too."""
    return {
        f"{path}.{name}".lstrip(".")
        for path, module in model.named_modules()
        if isinstance(module, _NormBase)
        for name, _ in module.named_buffers(recurse=False)
    }


def merged_buffers(
    reported: Sequence[tuple[int, dict[str, torch.Tensor]]], statistics: Container[str]
) -> dict[str, torch.Tensor]:
    """Buffers of several replicas as one set, each with the samples it was trained on.

    Statistics are averaged by samples, and what all agree on is kept to the bit; their counters
    take the largest. Everything else is that of the replica that trained most: nobody knows what a
    mean of two directions (spectral_norm's), queues or tables would be.
    """
    if not reported:
        return {}
    most = max(reported, key=lambda one: one[0])[1]
    merged = dict(most)
    for name, tensor in most.items():
        if name not in statistics:
            continue
        known = [(samples, buffers[name]) for samples, buffers in reported if name in buffers]
        if tensor.is_floating_point():
            merged[name] = _mean(known, tensor)
        else:
            merged[name] = torch.stack([other for _, other in known]).amax(0)
    return merged


def _mean(known: Sequence[tuple[int, torch.Tensor]], one: torch.Tensor) -> torch.Tensor:
    total = sum(samples for samples, _ in known)
    mean = sum((samples / total * tensor for samples, tensor in known), torch.zeros_like(one))
    agreed = torch.stack([tensor == one for _, tensor in known]).all(0)
    return torch.where(agreed, one, mean)
