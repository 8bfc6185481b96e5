"""Targets of the losses, in any form a user may have them, as one CSR of labels."""

from __future__ import annotations

from typing import Any

import torch

from manyhands.errors import DataError
from manyhands.sparse.csr import CSR


def labels_of(targets: Any, samples: int, outputs: int) -> CSR:
    """The labels of every sample.

    Whole numbers are one label a sample; CSR, a sparse tensor or zeros and ones [samples, outputs]
    any number of them. An entry is a label, whatever its value.
    """
    labels = _in_rows(targets, outputs)
    if len(labels) != samples:
        raise DataError(
            f"There are targets for {len(labels)} samples and outputs for {samples}; expected as "
            "many."
        )
    if labels.width > outputs and labels.nnz:
        _check_range(labels.columns, outputs)
    return labels


def _in_rows(targets: Any, outputs: int) -> CSR:
    if isinstance(targets, CSR):
        return targets
    if not isinstance(targets, torch.Tensor):
        raise DataError(
            f"The targets are {type(targets).__name__}; expected a tensor of labels (int64), "
            "mh.sparse.CSR or a sparse tensor."
        )
    if targets.layout != torch.strided:
        return CSR.from_torch(targets)
    if targets.dim() == 2 and targets.shape[1] == outputs and outputs > 1:
        return CSR.from_dense(targets)
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise DataError(
            f"The targets are {targets.dtype} of shape {list(targets.shape)}; expected one label "
            f"(int64) a sample, mh.sparse.CSR, or zeros and ones [samples, {outputs}]."
        )
    labels = targets.reshape(-1)
    _check_range(labels, outputs)
    offsets = torch.arange(len(labels) + 1)
    return CSR.unchecked(offsets, labels.to(torch.int32), None, outputs)


def _check_range(labels: torch.Tensor, outputs: int) -> None:
    if not len(labels):
        return
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= outputs:
        raise DataError(
            f"A label is {lowest if lowest < 0 else highest}; expected 0 to {outputs - 1}, for "
            f"the layer has {outputs} outputs."
        )
