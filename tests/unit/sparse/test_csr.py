"""Rows in compressed form: what goes in comes out, slices share memory, nonsense is named."""

import pickle
import warnings

import numpy as np
import pytest
import torch

import manyhands as mh
from manyhands.errors import DataError
from manyhands.sparse import CSR

DENSE = torch.tensor(
    [[0.0, 2.0, 0.0, 1.5], [0.0, 0.0, 0.0, 0.0], [3.0, 0.0, 0.0, -1.0], [0.0, 0.0, 4.0, 0.0]]
)


def rows() -> CSR:
    return CSR([0, 2, 2, 4, 5], [1, 3, 0, 3, 2], [2.0, 1.5, 3.0, -1.0, 4.0], 4)


def test_the_public_name():
    assert mh.sparse.CSR is CSR


def test_a_matrix_and_back():
    for same in (rows(), CSR.from_dense(DENSE), CSR.from_dense(DENSE.double().numpy())):
        assert same.shape == (4, 4)
        assert len(same) == 4
        assert same.nnz == 5
        assert same.offsets.dtype == torch.int64
        assert same.columns.dtype == torch.int32
        assert same.values.dtype == torch.float32
        torch.testing.assert_close(same.to_dense(), DENSE)
    assert rows().counts.tolist() == [2, 0, 2, 1]
    assert rows().row_of_entries().tolist() == [0, 0, 2, 2, 3]


def test_without_values_every_entry_is_one():
    labels = CSR.from_lists([[2], [], [0, 1]], 3)
    assert labels.values is None
    assert labels.to_dense().tolist() == [[0, 0, 1], [0, 0, 0], [1, 1, 0]]
    with_values = CSR.from_lists([[2], []], 3, [[0.5], []])
    assert with_values.to_dense().tolist() == [[0, 0, 0.5], [0, 0, 0]]


def test_no_rows_and_no_entries():
    none = CSR([0], [], None, 5)
    assert none.shape == (0, 5)
    assert none.to_dense().shape == (0, 5)
    assert none.take([]).shape == (0, 5)
    assert CSR.from_dense(torch.zeros(3, 2)).to_dense().tolist() == [[0, 0]] * 3
    assert CSR.from_lists([], 2).shape == (0, 2)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_tensors_of_torch_without_a_warning(layout):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        there = rows().to_torch(layout)
    assert there.layout == layout
    torch.testing.assert_close(there.to_dense(), DENSE)
    torch.testing.assert_close(CSR.from_torch(there).to_dense(), DENSE)


def test_a_coo_tensor_in_any_order_is_put_in_order():
    places = torch.tensor([[3, 0, 0], [1, 2, 2]])
    values = torch.tensor([1.0, 2.0, 3.0])
    tensor = torch.sparse_coo_tensor(places, values, (4, 3), check_invariants=True)
    torch.testing.assert_close(CSR.from_torch(tensor).to_dense(), tensor.to_dense())


def test_whatever_has_tocsr_is_taken():
    class Matrix:
        indptr = np.array([0, 1, 2], np.int32)
        indices = np.array([1, 0], np.int32)
        data = np.array([1.0, 2.0])
        shape = (2, 2)

        def tocsr(self):
            return self

    assert CSR.from_scipy(Matrix()).to_dense().tolist() == [[0, 1], [2, 0]]


@pytest.mark.parametrize(
    "which",
    [
        slice(1, 3),
        slice(None),
        slice(2, 2),
        slice(3, 1),
        slice(-2, None),
        slice(0, 4, 2),
        slice(None, None, -1),
        slice(3, 0, -2),
        -1,
        2,
        [3, 0, 0],
        np.array([1, 2]),
        torch.tensor([3]),
        torch.tensor(2),
        [-1, 0, -4],
        [True, False, False, True],
    ],
    ids=str,
)
def test_rows_are_taken_as_from_a_matrix(which):
    part = rows()[which]
    number = which if isinstance(which, slice) else np.atleast_1d(np.asarray(which))
    torch.testing.assert_close(part.to_dense(), torch.from_numpy(DENSE.numpy()[number].copy()))
    assert int(part.offsets[0]) == 0
    assert int(part.offsets[-1]) == part.nnz


@pytest.mark.parametrize(
    "which",
    [4, [4], [0, -5], 1.5, [1.5], torch.tensor(1.5), (0, 1), [[0]], "a", None, [True, False]],
    ids=str,
)
def test_what_names_no_rows_is_refused(which):
    with pytest.raises(IndexError, match="CSR"):
        rows()[which]


def test_no_rows_may_be_asked_for():
    assert rows()[[]].shape == (0, 4)


def test_a_slice_shares_memory():
    whole = rows()
    part = whole[2:4]
    assert part.columns.untyped_storage().data_ptr() == whole.columns.untyped_storage().data_ptr()
    assert part.values.untyped_storage().data_ptr() == whole.values.untyped_storage().data_ptr()


def test_a_loop_over_rows_ends():
    assert [row.nnz for row in rows()] == [2, 0, 2, 1]
    with pytest.raises(IndexError, match="row 4"):
        rows()[4]


def test_it_pickles_and_moves_to_other_tensors():
    again = pickle.loads(pickle.dumps(rows()))
    torch.testing.assert_close(again.to_dense(), DENSE)
    moved = rows().with_tensors([tensor.clone() for tensor in rows().tensors()])
    torch.testing.assert_close(moved.to_dense(), DENSE)
    labels = CSR.from_lists([[1]], 2)
    assert len(labels.tensors()) == 2
    assert labels.with_tensors(labels.tensors()).values is None
    with pytest.raises(ValueError, match="differ"):
        rows().with_tensors(labels.tensors())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 1], [4], None, 4), "a column is 4; expected 0 to 3"),
        (([0, 1], [-2], None, 4), "a column is -2"),
        (([0, 2], [1], None, 4), "0 to 2; expected 0 to the number of columns, 1"),
        (([1, 1], [1], None, 4), "1 to 1"),
        (([], [], None, 4), "offsets are empty"),
        (([0, 2, 1, 2], [1, 1], None, 4), "fall"),
        (([0, 1], [1], [1.0, 2.0], 4), "2 values for 1 columns"),
        (([0, 1], [1.0], None, 4), "whole numbers"),
        (([[0, 1]], [1], None, 4), "one dimension"),
        (([0, 1], [2**40], None, 4), str(2**40)),
        (([0, 1], ["a"], None, 4), "columns is list"),
        (([0, 0], [], None, -1), "width is -1"),
        (([0, 0], [], None, 2.5), "width is 2.5"),
    ],
)
def test_nonsense_is_named(arguments, message):
    with pytest.raises(DataError, match=message):
        CSR(*arguments)


def test_what_is_no_sparse_tensor_is_refused():
    with pytest.raises(DataError, match="from_dense"):
        CSR.from_torch(DENSE)
    with pytest.raises(DataError, match="tocsr"):
        CSR.from_scipy(DENSE)
    with pytest.raises(DataError, match="as many values"):
        CSR.from_lists([[1], [0]], 2, [[1.0], []])
