"""Rows of sparse gradients in order: noticed where they are, put there where they aren't."""

import pytest
import torch

from manyhands.optim.row_gradients import in_order


def gradient(rows: list[int], shape: tuple[int, ...]) -> torch.Tensor:
    values = torch.arange(1.0, 1.0 + len(rows)).view(-1, *[1] * (len(shape) - 1))
    values = values.expand(-1, *shape[1:]).contiguous()
    places = torch.tensor([rows], dtype=torch.int64)
    return torch.sparse_coo_tensor(places, values, shape, check_invariants=True)


@pytest.mark.parametrize("shape", [(9,), (9, 2)])
@pytest.mark.parametrize("rows", [[], [4], [0, 3, 8], [3, 0, 8], [3, 3, 8]])
def test_the_gradient_stays_the_same_with_each_row_once(rows, shape):
    given = gradient(rows, shape)
    whole = given.to_dense()
    ordered = in_order(given)
    assert ordered.is_coalesced()
    assert ordered.indices()[0].tolist() == sorted(set(rows))
    assert torch.equal(ordered.to_dense(), whole)


def test_rows_that_ascend_are_not_copied():
    given = gradient([0, 3, 8], (9, 2))
    assert in_order(given)._values().data_ptr() == given._values().data_ptr()


def test_what_is_no_row_is_left_alone():
    dense = torch.ones(3)
    assert in_order(dense) is dense
    places = torch.tensor([[0, 0], [1, 0]])
    points = torch.sparse_coo_tensor(places, torch.ones(2), (2, 2), check_invariants=True)
    assert in_order(points).indices().tolist() == [[0, 0], [0, 1]]
