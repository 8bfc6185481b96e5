"""Sources of sparse rows: batches, shared memory, and what a pair of matrices becomes."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import manyhands as mh
from manyhands.data.sparse_source import SparseSource, packed
from manyhands.errors import DataError
from manyhands.sparse.csr import CSR

FEATURES = CSR.from_lists([[0, 3], [], [2], [1, 2, 4]], 5, [[1, 2], [], [3], [4, 5, 6]])
LABELS = CSR.from_lists([[7], [0, 1], [], [2, 9]], 10)


def source() -> SparseSource:
    return mh.data.sparse(FEATURES, LABELS)


def test_a_batch_is_rows_in_the_order_asked_for() -> None:
    features, labels = source().fetch(np.array([3, 0, 3]), seed=0)
    assert features.to_dense().tolist() == FEATURES.to_dense()[[3, 0, 3]].tolist()
    assert labels.to_dense().tolist() == LABELS.to_dense()[[3, 0, 3]].tolist()
    assert (features.width, labels.width) == (5, 10)


def test_batches_can_be_sliced() -> None:
    assert source().sliceable
    features, labels = source().fetch(np.arange(4), seed=0)
    assert features[1:3].to_dense().tolist() == FEATURES.to_dense()[1:3].tolist()
    assert labels[1:3].to_dense().tolist() == LABELS.to_dense()[1:3].tolist()


def test_the_same_samples_on_other_storage() -> None:
    first = source()
    copies = [tensor.clone() for tensor in first.tensors()]
    moved = first.with_tensors(copies)
    copies[2].mul_(10)
    assert moved.features.to_dense().sum() == 10 * FEATURES.to_dense().sum()
    assert first.features.to_dense().sum() == FEATURES.to_dense().sum()
    with pytest.raises(ValueError, match="number, shape or dtype"):
        first.with_tensors(copies[:-1])


def test_it_pickles_and_splits() -> None:
    copied = pickle.loads(pickle.dumps(source()))
    rest, held_out = mh.data.split(copied, 0.25)
    assert (len(rest), len(held_out)) == (3, 1)
    rows = [rest.fetch(np.array([i]), seed=0)[0].to_dense() for i in range(3)]
    rows.append(held_out.fetch(np.array([0]), seed=0)[0].to_dense())
    assert torch.cat(rows).sum() == FEATURES.to_dense().sum()


def test_one_class_for_each_sample() -> None:
    classes = mh.data.sparse(FEATURES, np.array([3, 1, 0, 2]))
    features, targets = classes.fetch(np.array([2, 0]), seed=0)
    assert targets.tolist() == [0, 3]
    assert features.to_dense().tolist() == FEATURES.to_dense()[[2, 0]].tolist()
    moved = classes.with_tensors([tensor.clone() for tensor in classes.tensors()])
    assert moved.fetch(np.array([3]), seed=0)[1].tolist() == [2]


def test_pairs_of_sparse_matrices_are_data() -> None:
    pair = (FEATURES.to_torch(), LABELS)
    accepted = mh.data.as_source(pair)
    assert isinstance(accepted, SparseSource)
    assert accepted.features.to_dense().tolist() == FEATURES.to_dense().tolist()


def test_rows_must_match() -> None:
    with pytest.raises(DataError, match="features have 4 rows and labels 3"):
        mh.data.sparse(FEATURES, LABELS[:3])
    with pytest.raises(DataError, match="no rows"):
        mh.data.sparse(FEATURES[:0], LABELS[:0])
    with pytest.raises(DataError, match=r"ndarray: expected a manyhands\.sparse\.CSR"):
        mh.data.sparse(np.zeros((4, 2)), LABELS)


def test_packed_rows() -> None:
    counts, columns = np.array([1, 0, 2]), np.array([4, 0, 3], dtype=np.int32)
    rows = packed(counts, columns, None, 5)
    assert rows.to_dense().tolist() == [[0, 0, 0, 0, 1], [0] * 5, [1, 0, 0, 1, 0]]
