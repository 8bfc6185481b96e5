"""Sparse layers: wide layers that compute only the neurons that matter (SLIDE), and sparse input.

    net = nn.Sequential(
        mh.sparse.SparseLinear(45_067, 128), nn.ReLU(), mh.sparse.LSHLinear(128, 25_905)
    )
    loss = mh.sparse.LSHSoftmaxLoss()

docs/sparse.md explains the idea and every setting. From the user's side inwards: `lsh_linear.py` is
the layer, `active_outputs.py` what it gives, `losses.py` what takes that; `neuron_index.py` keeps
the hash tables, `choosing.py` asks them, `active_product.py` computes.
"""

from torch import nn

from manyhands.sparse.active_outputs import ActiveOutputs
from manyhands.sparse.csr import CSR
from manyhands.sparse.hash_families import DWTA, WTA, HashFamily, MinHash, SimHash
from manyhands.sparse.losses import LSHSigmoidLoss, LSHSoftmaxLoss
from manyhands.sparse.lsh_linear import LSHLinear
from manyhands.sparse.refresh import Refresh
from manyhands.sparse.row_optimizer import RowOptimizer
from manyhands.sparse.sampling import Sampling
from manyhands.sparse.sparse_linear import SparseLinear

__all__ = [
    "CSR",
    "DWTA",
    "WTA",
    "ActiveOutputs",
    "HashFamily",
    "LSHLinear",
    "LSHSigmoidLoss",
    "LSHSoftmaxLoss",
    "MinHash",
    "Refresh",
    "RowOptimizer",
    "Sampling",
    "SimHash",
    "SparseLinear",
]


def has_sparse_layers(model: nn.Module) -> bool:
    """Whether some layer of the model is one of these."""
    return any(isinstance(module, (LSHLinear, SparseLinear)) for module in model.modules())
