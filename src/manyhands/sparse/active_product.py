"""Products with some rows of a weight: the forward and backward of a layer's active neurons.

The gradients of weight and bias are sparse tensors that hold the active rows alone, so an optimizer
never looks at the others. Gathered rows are a few thousand; the matrix they come from may have a
million.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from manyhands import kernels


@dataclass(frozen=True, slots=True)
class ActiveSet:
    """Which neurons compute for a batch, by number, ascending.

    Without `offsets` the whole batch shares `rows`; with them, sample i has
    `rows[offsets[i]:offsets[i + 1]]` to itself.
    """

    rows: torch.Tensor
    offsets: torch.Tensor | None = None

    def samples(self) -> torch.Tensor:
        """The sample that each row of an own set belongs to."""
        assert self.offsets is not None
        return torch.repeat_interleave(self.offsets.diff())

    def distinct(self) -> torch.Tensor:
        """The rows, each once."""
        return self.rows if self.offsets is None else torch.unique(self.rows)


def active_product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, active: ActiveSet
) -> torch.Tensor:
    """The outputs of the active neurons for `x` [batch, inputs].

    [batch, rows] for a shared set; one number per row of `active.rows` for own sets.
    """
    if active.offsets is None:
        return differentiable(_SharedProduct, x, weight, bias, active.rows)
    return differentiable(_OwnProduct, x, weight, bias, active.rows, active.offsets)


def differentiable(function: type[torch.autograd.Function], *arguments: Any) -> torch.Tensor:
    """The output of a function with a backward of its own."""
    output: torch.Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return output


def products_of_own(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    active: ActiveSet,
    threads: int | None = None,
) -> torch.Tensor:
    """The outputs of each sample's own rows, one behind the other. Not differentiable by itself."""
    assert active.offsets is not None
    outputs = torch.empty(len(active.rows))
    kernels.row_products(
        x.detach().contiguous(),
        weight.detach(),
        None if bias is None else bias.detach(),
        active.offsets,
        active.rows,
        outputs,
        threads or torch.get_num_threads(),
    )
    return outputs


def spread_out(outputs: torch.Tensor, active: ActiveSet, batch: int, neurons: int) -> torch.Tensor:
    """Active outputs in their places of [batch, neurons], zeros elsewhere. Differentiable."""
    zeros = outputs.new_zeros(batch, neurons)
    if active.offsets is None:
        return zeros.index_copy(1, active.rows, outputs)
    return zeros.index_put((active.samples(), active.rows), outputs)


def row_gradient(
    rows: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...] | torch.Size
) -> torch.Tensor:
    """A gradient that is zero but in these rows, which ascend."""
    return torch.sparse_coo_tensor(
        rows.unsqueeze(0), values, tuple(shape), is_coalesced=True, check_invariants=False
    )


def gathered_rows(
    rows: torch.Tensor, samples: torch.Tensor, factors: torch.Tensor, errors: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and their sums, where entry j adds `factors[j] * errors[samples[j]]` to its row."""
    distinct, place = torch.unique(rows, return_inverse=True)
    entries = torch.sparse_coo_tensor(
        torch.stack([place, samples]),
        factors,
        (len(distinct), len(errors)),
        check_invariants=False,
    )
    return distinct, torch.sparse.mm(entries, errors)


class _SharedProduct(torch.autograd.Function):
    """x W_S^T + b_S for one set of rows S."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        rows: torch.Tensor,
    ) -> torch.Tensor:
        chosen = weight.index_select(0, rows)
        ctx.save_for_backward(x, chosen, rows)
        ctx.shape = weight.shape
        if bias is None:
            return x @ chosen.T
        return torch.addmm(bias.index_select(0, rows), x, chosen.T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, errors: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, chosen, rows = ctx.saved_tensors
        for_x, for_weight, for_bias, _ = ctx.needs_input_grad
        return (
            errors @ chosen if for_x else None,
            row_gradient(rows, errors.T @ x, ctx.shape) if for_weight else None,
            row_gradient(rows, errors.sum(0), ctx.shape[:1]) if for_bias else None,
            None,
        )


class _OwnProduct(torch.autograd.Function):
    """One number per (sample, row): x[sample] . W[row] + b[row]."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        rows: torch.Tensor,
        offsets: torch.Tensor,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight, rows, offsets)
        return products_of_own(x, weight, bias, ActiveSet(rows, offsets))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, errors: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, rows, offsets = ctx.saved_tensors
        for_x, for_weight, for_bias, _, _ = ctx.needs_input_grad
        x_gradient = weight_gradient = bias_gradient = None
        if for_x:
            x_gradient = torch.zeros_like(x)
            for sample, part in _parts(offsets):
                x_gradient[sample] = errors[part] @ weight.index_select(0, rows[part])
        if for_weight or for_bias:
            samples = torch.repeat_interleave(offsets.diff())
            # A column of ones beside x gives the bias its sums in the same pass.
            beside = torch.cat([x, x.new_ones(len(x), 1)], 1)
            distinct, sums = gathered_rows(rows, samples, errors, beside)
            if for_weight:
                weight_gradient = row_gradient(distinct, sums[:, :-1].contiguous(), weight.shape)
            if for_bias:
                bias_gradient = row_gradient(distinct, sums[:, -1].contiguous(), weight.shape[:1])
        return x_gradient, weight_gradient, bias_gradient, None, None


def _parts(offsets: torch.Tensor) -> list[tuple[int, slice]]:
    ends = offsets.tolist()
    return [(i, slice(a, b)) for i, (a, b) in enumerate(pairwise(ends))]
