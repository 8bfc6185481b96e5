"""The buffers of several replicas (BatchNorm's statistics) as one set."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def merged_buffers(
    reported: Sequence[tuple[int, dict[str, torch.Tensor]]],
) -> dict[str, torch.Tensor]:
    """Buffers of several replicas as one set, each with the samples it was trained on.

    Statistics (BatchNorm's) are averaged by samples, and what all agree on is kept to the bit;
    counters take the largest. What is neither, or has no common shape, is that of the replica that
    trained most.
    """
    if not reported:
        return {}
    most = max(reported, key=lambda one: one[0])[1]
    merged = dict(most)
    for name, tensor in most.items():
        # A buffer that forward makes up may be there in one replica and not yet in another.
        known = [(samples, buffers[name]) for samples, buffers in reported if name in buffers]
        if any(other.shape != tensor.shape for _, other in known) or tensor.dtype == torch.bool:
            continue
        if tensor.is_floating_point():
            merged[name] = _mean(known, tensor)
        elif not tensor.is_complex():
            merged[name] = torch.stack([other for _, other in known]).amax(0)
    return merged


def _mean(known: Sequence[tuple[int, torch.Tensor]], one: torch.Tensor) -> torch.Tensor:
    total = sum(samples for samples, _ in known)
    mean = sum((samples / total * tensor for samples, tensor in known), torch.zeros_like(one))
    agreed = torch.stack([tensor == one for _, tensor in known]).all(0)
    return torch.where(agreed, one, mean)
