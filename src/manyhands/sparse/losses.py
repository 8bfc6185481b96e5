"""Losses over the active neurons of an LSHLinear, which choose them together with the labels.

While training they see a few thousand outputs; in `eval()` the layer gives all of them and the same
loss is computed over all. For one label a sample, LSHSoftmaxLoss over all outputs is cross entropy.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from manyhands.errors import ModelError
from manyhands.sparse.active_outputs import ActiveOutputs
from manyhands.sparse.active_product import ActiveSet
from manyhands.sparse.csr import CSR
from manyhands.sparse.partial_outputs import refuse_changed
from manyhands.sparse.targets import labels_of

# Without gradients so many outputs are summed at once: evaluating a wide layer then needs no second
# copy of all its outputs.
_AT_ONCE = 2**24


class LSHSoftmaxLoss(nn.Module):
    """Cross entropy of a softmax over the active neurons, for any number of labels a sample.

    The labels of a sample share its target equally. A sample without labels contributes 0. The mean
    over the samples of the batch.

    Outputs: those of an LSHLinear as they are (what is computed with them first comes too late for
    the labels to be among the active neurons, and is refused), or a tensor of logits. Targets: a
    tensor of labels (int64), one a sample; or `mh.sparse.CSR` or a sparse tensor of
    PyTorch, in which every entry is a label whatever its value.
    """

    def forward(self, outputs: ActiveOutputs | torch.Tensor, targets: Any) -> torch.Tensor:
        """The loss as a scalar."""
        logits = _beside_labels(outputs, targets)
        counts = logits.labels.counts
        shares = (1.0 / counts.clamp(min=1)).repeat_interleave(counts)
        of_labels = (shares * logits.at_labels()).sum()
        return (logits.log_sums()[counts > 0].sum() - of_labels) / max(1, len(counts))


class LSHSigmoidLoss(nn.Module):
    """Binary cross entropy of each active neuron by itself: 1 for a label, 0 for another.

    Summed over the neurons, the mean over the samples. Targets as for LSHSoftmaxLoss. Neurons that
    were not active are left out, so that the figure of `eval()`, over all of them, is larger.
    """

    def forward(self, outputs: ActiveOutputs | torch.Tensor, targets: Any) -> torch.Tensor:
        """The loss as a scalar."""
        logits = _beside_labels(outputs, targets)
        of_labels = logits.at_labels().sum()
        return (logits.softplus_sum() - of_labels) / max(1, len(logits.labels))


class _Logits(Protocol):
    """The outputs of the active neurons, and where the labels are among them."""

    labels: CSR

    def at_labels(self) -> torch.Tensor:
        """The output of every label."""
        ...

    def log_sums(self) -> torch.Tensor:
        """For each sample, the logarithm of the sum of the exponentials of its outputs."""
        ...

    def softplus_sum(self) -> torch.Tensor:
        """The sum of log(1 + exp(output)) over all of them."""
        ...


class _SharedLogits:
    """One set of neurons for the whole batch: a matrix [samples, neurons]."""

    def __init__(self, matrix: torch.Tensor, labels: CSR, places: torch.Tensor) -> None:
        self.labels = labels
        self._matrix = matrix
        self._places = places

    def at_labels(self) -> torch.Tensor:
        return self._matrix[self.labels.row_of_entries(), self._places]

    def log_sums(self) -> torch.Tensor:
        return torch.cat([part.logsumexp(1) for part in self._parts()])

    def softplus_sum(self) -> torch.Tensor:
        return torch.stack([F.softplus(part).sum() for part in self._parts()]).sum()

    def _parts(self) -> tuple[torch.Tensor, ...]:
        if self._matrix.requires_grad:
            return (self._matrix,)
        at_once = max(1, _AT_ONCE // max(1, self._matrix.shape[1]))
        return tuple(torch.split(self._matrix, at_once))


class _OwnLogits:
    """A set of neurons for each sample, one behind the other."""

    def __init__(self, flat: torch.Tensor, active: ActiveSet, labels: CSR, neurons: int) -> None:
        self.labels = labels
        self._flat = flat
        self._samples = active.samples()
        # (sample, neuron) as one number: they ascend, for samples do and neurons within a sample.
        wanted = labels.row_of_entries() * neurons + labels.columns
        self._places = torch.searchsorted(self._samples * neurons + active.rows, wanted)

    def at_labels(self) -> torch.Tensor:
        return self._flat[self._places]

    def log_sums(self) -> torch.Tensor:
        count = len(self.labels)
        lowest = self._flat.new_full((count,), -torch.inf)
        highest = lowest.scatter_reduce(0, self._samples, self._flat.detach(), "amax")
        highest = highest.nan_to_num(neginf=0.0)  # of a sample without active neurons
        exponentials = (self._flat - highest[self._samples]).exp()
        sums = self._flat.new_zeros(count).index_add(0, self._samples, exponentials)
        return sums.log() + highest

    def softplus_sum(self) -> torch.Tensor:
        return F.softplus(self._flat).sum()


def _beside_labels(outputs: ActiveOutputs | torch.Tensor, targets: Any) -> _Logits:
    if isinstance(outputs, ActiveOutputs):
        neurons = outputs.layer.out_features
        labels = labels_of(targets, outputs.samples, neurons)
        active, values = outputs.choose(labels)
        if active.offsets is not None:
            return _OwnLogits(values, active, labels, neurons)
        places = torch.searchsorted(active.rows, labels.columns.long())
        return _SharedLogits(values, labels, places)
    refuse_changed(outputs)
    if not isinstance(outputs, torch.Tensor) or not outputs.dim():
        raise ModelError(
            f"The outputs are {type(outputs).__name__}; expected those of an LSHLinear, or a "
            "tensor of logits [samples, outputs]."
        )
    matrix = outputs.reshape(-1, outputs.shape[-1])
    labels = labels_of(targets, *matrix.shape)
    return _SharedLogits(matrix, labels, labels.columns.long())
