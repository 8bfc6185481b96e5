"""PartialOutputs: a dense tensor of which some outputs were never computed, and which remembers it.

A zero for a neuron that was not chosen is right for a hidden layer, whose next layer sums over it.
As a logit it is wrong: a softmax would train on it and nobody would notice. So the tensor refuses
functions over all outputs, and so does what elementwise functions make of it (`outputs / 2`, a
dropout); what sums over the outputs, as the next layer does, is an ordinary tensor again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from manyhands.errors import ModelError

_OVER_ALL_OUTPUTS = frozenset(
    {
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "cross_entropy",
        "cross_entropy_loss",
        "gumbel_softmax",
        "kl_div",
        "log_softmax",
        "logsumexp",
        "multi_margin_loss",
        "multilabel_margin_loss",
        "multilabel_soft_margin_loss",
        "nll_loss",
        "softmax",
        "softmin",
    }
)
_SUMMING = frozenset(
    {"__matmul__", "__rmatmul__", "addmm", "baddbmm", "bmm", "einsum", "linear", "matmul", "mm"}
)


class PartialOutputs(torch.Tensor):
    """Outputs [*, out_features] with zeros for the neurons that were not chosen."""

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        name = getattr(function, "__name__", "")
        refuse_over_all_outputs(name)
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **(kwargs or {}))
            if name in _SUMMING or not isinstance(result, torch.Tensor):
                return result
            return marked(result) if _width(result) == _width(args) else result


def marked(tensor: torch.Tensor) -> PartialOutputs:
    """The same tensor, which knows that it is partial."""
    return tensor.as_subclass(PartialOutputs)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as a layer takes it that sums over it."""
    if isinstance(tensor, PartialOutputs):
        return tensor.as_subclass(torch.Tensor)
    return tensor


def refuse_over_all_outputs(name: str) -> None:
    """ModelError for a function of PyTorch that would take the zeros for logits."""
    if name in _OVER_ALL_OUTPUTS:
        raise ModelError(
            f"{name} needs every output, and an LSHLinear computes only a few while training: use "
            "mh.sparse.LSHSoftmaxLoss or LSHSigmoidLoss on its outputs (eval() gives all of them)."
        )


def refuse_changed(outputs: object) -> None:
    """ModelError for outputs that a loss gets too late to choose its labels among them."""
    if isinstance(outputs, PartialOutputs):
        raise ModelError(
            "Something was computed with the outputs of an LSHLinear before the loss, which then "
            "can't choose the labels among them: hand them to the loss as they are."
        )


def _width(value: Any) -> int | None:
    """The last dimension of a tensor, or of the first partial one among arguments."""
    if isinstance(value, torch.Tensor):
        return value.shape[-1] if value.dim() else None
    if isinstance(value, (tuple, list)):
        widths = (_width(item) for item in value if isinstance(item, (PartialOutputs, tuple, list)))
        return next((width for width in widths if width is not None), None)
    return None
