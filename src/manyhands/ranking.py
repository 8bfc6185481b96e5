"""How well the best guesses hit a set of labels: precision and nDCG of the first k.

Over all samples, as the extreme classification repository counts them: a sample without labels
counts as a miss. Labels are CSR rows, or one class for each sample.
"""

from __future__ import annotations

import torch
from torch.utils.weak import WeakIdKeyDictionary

from manyhands.sparse.csr import CSR

MOST = 5  # guesses that any of the metrics looks at

# Several metrics of one evaluation look at the same outputs, and finding the best of half a million
# logits takes as long as computing a good part of them. An entry lives no longer than its outputs.
_best_of: WeakIdKeyDictionary = WeakIdKeyDictionary()


class PrecisionAt:
    """The share of the first k guesses that are labels of their sample."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._sum = 0.0
        self._samples = 0

    def update(self, outputs: torch.Tensor, targets: CSR | torch.Tensor) -> None:
        self._sum += float(hits(outputs, targets)[:, : self._k].sum()) / self._k
        self._samples += len(outputs)

    def value(self) -> float:
        return self._sum / max(1, self._samples)


class DiscountedGainAt:
    """nDCG: hits count less the later they come, against the best order there could be."""

    def __init__(self, k: int) -> None:
        self._discounts = 1.0 / torch.log2(torch.arange(k, dtype=torch.float64) + 2.0)
        self._sum = 0.0
        self._samples = 0

    def update(self, outputs: torch.Tensor, targets: CSR | torch.Tensor) -> None:
        found = hits(outputs, targets)[:, : len(self._discounts)].double()
        gain = found @ self._discounts[: found.shape[1]]
        wanted = _label_counts(targets).clamp(1, len(self._discounts))
        best = self._discounts.cumsum(0)[wanted - 1]
        self._sum += float((gain / best).sum())
        self._samples += len(outputs)

    def value(self) -> float:
        return self._sum / max(1, self._samples)


def hits(outputs: torch.Tensor, targets: CSR | torch.Tensor) -> torch.Tensor:
    """[samples, guesses]: whether each of the best guesses, the very best first, is a label."""
    guesses = _best(outputs)
    if not isinstance(targets, CSR):
        return guesses == targets.unsqueeze(1)
    # One number for each place of the matrix, so that all guesses are looked up at once.
    width = max(targets.width, outputs.shape[1])
    rows = torch.arange(len(targets)).unsqueeze(1)
    places = targets.row_of_entries() * width + targets.columns
    return torch.isin(rows * width + guesses, places)


def _best(outputs: torch.Tensor) -> torch.Tensor:
    known = _best_of.get(outputs)  # type: ignore[no-untyped-call]
    if known is not None and known[0] == outputs._version:
        found: torch.Tensor = known[1]
        return found
    found = outputs.topk(min(MOST, outputs.shape[1]), dim=1).indices
    _best_of[outputs] = (outputs._version, found)
    return found


def _label_counts(targets: CSR | torch.Tensor) -> torch.Tensor:
    return targets.counts if isinstance(targets, CSR) else torch.ones_like(targets)
