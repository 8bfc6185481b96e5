"""SparseLinear: a first layer for inputs that are mostly zeros, such as words of a text.

Only the rows of the features that a batch has are read, and only they get a gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from manyhands.errors import DataError, ModelError
from manyhands.sparse.active_product import differentiable, gathered_rows, row_gradient
from manyhands.sparse.csr import CSR
from manyhands.sparse.float32_only import Float32Only, whole_number


class SparseLinear(Float32Only, nn.Module):
    """y = x W + b for sparse x [batch, in_features].

    `weight` is [in_features, out_features], a row for each feature as in `nn.EmbeddingBag` (and the
    transpose of `nn.Linear`'s): a feature's weights lie side by side in memory. Its gradient is a
    sparse tensor of the rows that the batch touched; the bias has an ordinary one.

    The input is `mh.sparse.CSR`, a sparse tensor of PyTorch, `(indices, values, offsets)` with
    values None for ones, or a dense tensor, which is multiplied as such.
    """

    sparse = True  # its gradients are

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features = whole_number("SparseLinear: in_features", in_features)
        self.out_features = whole_number("SparseLinear: out_features", out_features)
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights for inputs of about unit length: the outputs are then of about unit length too.

        `nn.Linear`'s would make them smaller the more features there are, though a sample has few.
        """
        nn.init.normal_(self.weight, std=self.out_features**-0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Any) -> torch.Tensor:
        """The outputs [batch, out_features]."""
        if isinstance(x, torch.Tensor) and x.layout == torch.strided:
            return self._dense(x)
        rows = self._in_rows(x)
        if rows.width > self.in_features and rows.nnz:
            self._check_features(rows)
        product = differentiable(_RowsProduct, rows, self.weight)
        return product if self.bias is None else product + self.bias

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"

    def _dense(self, x: torch.Tensor) -> torch.Tensor:
        self._check_float32(x.dtype)
        if not x.dim() or x.shape[-1] != self.in_features:
            raise ModelError(
                f"SparseLinear: the input has shape {list(x.shape)}; expected "
                f"[batch, {self.in_features}]."
            )
        product = x @ self.weight
        return product if self.bias is None else product + self.bias

    def _in_rows(self, x: Any) -> CSR:
        if isinstance(x, CSR):
            return x
        if isinstance(x, torch.Tensor):
            self._check_float32(x.dtype)
            if x.requires_grad:
                raise ModelError(
                    "SparseLinear: the input is a sparse tensor that requires a gradient, which it "
                    "can't be given: pass x.detach(), or x.to_dense()."
                )
            return CSR.from_torch(x)
        if isinstance(x, (tuple, list)) and len(x) == 3:
            indices, values, offsets = x
            return CSR(_whole_offsets(offsets, len(indices)), indices, values, self.in_features)
        raise ModelError(
            f"SparseLinear: the input is {type(x).__name__}; expected mh.sparse.CSR, a tensor, or "
            "(indices, values, offsets)."
        )

    def _check_features(self, rows: CSR) -> None:
        highest = int(rows.columns.max())
        if highest >= self.in_features:
            raise DataError(
                f"SparseLinear: a feature is {highest}; expected 0 to {self.in_features - 1}, for "
                f"the layer has {self.in_features} inputs."
            )


def _whole_offsets(offsets: Any, entries: int) -> torch.Tensor:
    """Offsets as CSR has them; `nn.EmbeddingBag` leaves out the last."""
    given = torch.as_tensor(offsets)
    if given.dim() == 1 and (not len(given) or int(given[-1]) < entries):
        return torch.cat([given, given.new_tensor([entries])])
    return given


class _RowsProduct(torch.autograd.Function):
    """The sum over a sample's features of value times the feature's row of the weight."""

    @staticmethod
    def forward(ctx: Any, rows: CSR, weight: torch.Tensor) -> torch.Tensor:
        ctx.rows, ctx.shape = rows, weight.shape
        # Both in 32 bits, which embedding_bag wants alike; a batch has far fewer entries.
        return F.embedding_bag(
            rows.columns,
            weight,
            rows.offsets.to(torch.int32),
            mode="sum",
            per_sample_weights=rows.values,
            include_last_offset=True,
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, errors: torch.Tensor) -> tuple[None, torch.Tensor | None]:
        rows: CSR = ctx.rows
        if not ctx.needs_input_grad[1]:
            return None, None
        columns = rows.columns.long()
        distinct, sums = gathered_rows(
            columns, rows.row_of_entries(), rows.values_or_ones(), errors
        )
        return None, row_gradient(distinct, sums, ctx.shape)
