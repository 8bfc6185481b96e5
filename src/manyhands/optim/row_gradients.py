"""Sparse gradients as rows: each row once, in ascending order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def in_order(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient whose rows are unique and ascend; a dense one as it is.

    Autograd forgets that a gradient was in order when it stores it, and sorting the rows of a wide
    layer again takes longer than looking.
    """
    if not gradient.is_sparse or gradient.is_coalesced():
        return gradient
    if gradient.sparse_dim() == 1:
        rows = gradient._indices()[0]
        if bool((rows[1:] > rows[:-1]).all()):
            return gradient._coalesced_(True)
    return gradient.coalesce()


def in_rows(tensor: torch.Tensor) -> torch.Tensor:
    """A matrix with the same rows, also where there are none; a bias has rows of one number."""
    return tensor.view(len(tensor), math.prod(tensor.shape[1:]))
