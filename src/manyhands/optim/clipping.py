"""Clipping by the global norm: the one part of a rule that looks at all gradients at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from manyhands import kernels
from manyhands.optim.rules import Rule

if TYPE_CHECKING:
    import torch


def clipping(rule: Rule, gradients: Sequence[torch.Tensor]) -> float:
    """The factor that brings gradients down to the rule's norm, as `clip_grad_norm_` has it."""
    if rule.clip_norm is None:
        return 1.0
    norm = math.sqrt(kernels.squared_norm(gradients))
    return min(1.0, rule.clip_norm / (norm + 1e-6))
