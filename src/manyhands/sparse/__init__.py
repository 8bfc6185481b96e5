"""Sparse layers: wide layers that compute only the neurons that matter (SLIDE), sparse input."""

from manyhands.sparse.csr import CSR

__all__ = ["CSR"]
