"""A linear layer for sparse input: the dense product, with gradients for the touched rows alone."""

import copy
import pickle

import pytest
import torch

from manyhands.errors import ConfigError, DataError, ModelError
from manyhands.sparse import CSR, SparseLinear


def layer(bias: bool = True) -> SparseLinear:
    torch.manual_seed(0)
    ours = SparseLinear(30, 6, bias=bias)
    if bias:
        torch.nn.init.normal_(ours.bias)
    return ours


def sparse_input() -> torch.Tensor:
    torch.manual_seed(1)
    dense = torch.randn(5, 30) * (torch.rand(5, 30) < 0.2)
    dense[3] = 0
    return dense


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_it_is_the_dense_product_and_its_gradient(bias):
    ours, dense = layer(bias), sparse_input()
    errors = torch.randn(5, 6)
    inputs = list(ours.parameters())
    expected = dense @ ours.weight + (ours.bias if bias else 0)
    peers = torch.autograd.grad((expected * errors).sum(), inputs)
    outputs = ours(CSR.from_dense(dense))
    torch.testing.assert_close(outputs, expected)
    gradients = torch.autograd.grad((outputs * errors).sum(), inputs)
    for gradient, peer in zip(gradients, peers, strict=True):
        torch.testing.assert_close(gradient.to_dense(), peer)
    assert gradients[0].is_coalesced()
    assert gradients[0].indices()[0].tolist() == dense.any(0).nonzero()[:, 0].tolist()


def test_every_form_of_input_gives_the_same():
    ours, dense = layer(), sparse_input()
    rows = CSR.from_dense(dense)
    expected = ours(dense)
    for same in (
        rows,
        rows.to_torch(),
        rows.to_torch(torch.sparse_csr),
        (rows.columns, rows.values, rows.offsets),
        (rows.columns.long(), rows.values, rows.offsets[:-1]),
    ):
        torch.testing.assert_close(ours(same), expected)
    ones = CSR(rows.offsets, rows.columns, None, 30)
    torch.testing.assert_close(ours(ones), ours((dense != 0).float()))
    torch.testing.assert_close(ours((rows.columns, None, rows.offsets)), ours(ones))


def test_a_feature_twice_in_a_row_adds_up():
    ours = layer()
    twice = CSR([0, 2], [7, 7], [1.0, 2.0], 30)
    torch.testing.assert_close(ours(twice), ours(CSR([0, 1], [7], [3.0], 30)))
    ours(twice).sum().backward()
    assert ours.weight.grad.to_dense()[7].tolist() == [3.0] * 6


def test_a_batch_of_nothing():
    ours = layer()
    outputs = ours(CSR([0], [], None, 30))
    assert outputs.shape == (0, 6)
    outputs.sum().backward()
    assert ours.weight.grad.to_dense().abs().sum() == 0
    torch.testing.assert_close(ours(CSR([0, 0, 0], [], None, 30)), ours.bias.expand(2, 6))


def test_frozen_weights_get_no_gradient():
    ours = layer()
    ours.weight.requires_grad_(False)
    ours(CSR.from_dense(sparse_input())).sum().backward()
    assert ours.weight.grad is None
    assert ours.bias.grad is not None


def test_copies_and_state_dicts():
    ours = layer()
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), SparseLinear(30, 6)):
        twin.load_state_dict(ours.state_dict())
        torch.testing.assert_close(twin(sparse_input()), ours(sparse_input()))
    assert set(ours.state_dict()) == {"weight", "bias"}


def test_mistakes_are_named():
    ours = layer()
    with pytest.raises(DataError, match="feature is 31; expected 0 to 29"):
        ours(CSR([0, 1], [31], None, 40))
    with pytest.raises(DataError, match="a column is 31"):
        ours(([31], None, [0]))
    with pytest.raises(ModelError, match=r"shape \[2, 4\]; expected \[batch, 30\]"):
        ours(torch.ones(2, 4))
    with pytest.raises(ModelError, match=r"torch.float64.*x.float"):
        ours(torch.ones(2, 30).double())
    with pytest.raises(ModelError, match="input is str"):
        ours("text")
    with pytest.raises(ModelError, match="requires a gradient"):
        ours(CSR.from_dense(sparse_input()).to_torch().requires_grad_())
    with pytest.raises(ModelError, match=r"can.t be moved to torch\.float16"):
        ours.half()
    with pytest.raises(ConfigError, match="in_features is 0"):
        SparseLinear(0, 3)
    torch.testing.assert_close(ours(CSR([0, 1], [29], None, 40)), ours(CSR([0, 1], [29], None, 30)))
