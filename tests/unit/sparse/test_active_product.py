"""Products with some rows equal the whole product with the other outputs masked away."""

import pytest
import torch

from manyhands.sparse.active_product import ActiveSet, active_product, spread_out

SHARED = ActiveSet(torch.tensor([0, 3, 4, 8]))
OWN = ActiveSet(torch.tensor([1, 8, 0, 1, 2, 5]), torch.tensor([0, 2, 2, 6]))


def parts(requires_grad=(True, True, True), dtype=torch.float32):
    torch.manual_seed(1)
    tensors = torch.randn(3, 5), torch.randn(9, 5), torch.randn(9)
    return [t.to(dtype).requires_grad_(r) for t, r in zip(tensors, requires_grad, strict=True)]


def mask_of(active: ActiveSet) -> torch.Tensor:
    mask = torch.zeros(3, 9)
    if active.offsets is None:
        mask[:, active.rows] = 1
    else:
        mask[active.samples(), active.rows] = 1
    return mask


@pytest.mark.parametrize("active", [SHARED, OWN], ids=["shared", "own"])
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no-bias"])
def test_forward_and_backward_equal_the_masked_product(active, with_bias):
    x, weight, bias = parts()
    errors = torch.randn(3, 9)
    dense = torch.nn.functional.linear(x, weight, bias if with_bias else None) * mask_of(active)
    inputs = [x, weight, bias] if with_bias else [x, weight]
    expected = torch.autograd.grad((dense * errors).sum(), inputs)
    outputs = active_product(x, weight, bias if with_bias else None, active)
    ours = spread_out(outputs, active, 3, 9)
    torch.testing.assert_close(ours, dense)
    gradients = torch.autograd.grad((ours * errors).sum(), inputs)
    assert gradients[0].layout == torch.strided
    for gradient, peer in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient.to_dense(), peer)
    for gradient in gradients[1:]:
        assert gradient.is_sparse
        assert gradient.is_coalesced()
        assert torch.equal(gradient.indices()[0], active.distinct())


def test_the_gradient_of_the_input_is_that_of_the_function():
    x, weight, bias = parts(dtype=torch.float64)
    frozen = weight.detach(), bias.detach()
    assert torch.autograd.gradcheck(lambda x: active_product(x, *frozen, SHARED), (x,))


@pytest.mark.parametrize("active", [SHARED, OWN], ids=["shared", "own"])
@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_only_what_is_asked_for_gets_a_gradient(active, wanted):
    inputs = parts([number == wanted for number in range(3)])
    active_product(*inputs, active).sum().backward()
    assert [tensor.grad is not None for tensor in inputs] == [n == wanted for n in range(3)]


@pytest.mark.parametrize("offsets", [None, torch.zeros(4, dtype=torch.int64)])
def test_no_active_row(offsets):
    x, weight, bias = parts()
    nobody = ActiveSet(torch.empty(0, dtype=torch.int64), offsets)
    outputs = active_product(x, weight, bias, nobody)
    assert outputs.numel() == 0
    assert spread_out(outputs, nobody, 3, 9).tolist() == [[0.0] * 9] * 3
    outputs.sum().backward()
    assert weight.grad.to_dense().abs().sum() == 0
    assert x.grad.abs().sum() == 0
