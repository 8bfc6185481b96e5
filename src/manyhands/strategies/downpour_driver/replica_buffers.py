"""The buffers of several replicas (BatchNorm's statistics) as one set."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def merged_buffers(
    reported: Sequence[tuple[int, dict[str, torch.Tensor]]],
) -> dict[str, torch.Tensor]:
    """Buffers of several replicas as one set, each with the samples it was trained on.

    Statistics (BatchNorm's) are averaged by samples, counters take the largest; what is neither,
    or has no common shape, is that of the replica that trained most.
    """
    if not reported:
        return {}
    total = sum(samples for samples, _ in reported)
    most = max(reported, key=lambda one: one[0])[1]
    merged = dict(most)
    for name, tensor in most.items():
        others = [(samples / total, buffers[name]) for samples, buffers in reported]
        if any(other.shape != tensor.shape for _, other in others) or tensor.dtype == torch.bool:
            continue
        if tensor.is_floating_point():
            merged[name] = sum((share * b for share, b in others), torch.zeros_like(tensor))
        elif not tensor.is_complex():
            merged[name] = torch.stack([other for _, other in others]).amax(0)
    return merged
