"""Losses over active neurons equal PyTorch's over all, and over what was chosen."""

import pytest
import torch
import torch.nn.functional as F

from manyhands.errors import DataError, ModelError
from manyhands.sparse import CSR, LSHLinear, LSHSigmoidLoss, LSHSoftmaxLoss, Sampling

NEURONS = 1000
LABELS = CSR.from_lists([[3, 998], [], [500], [3]], NEURONS)
MULTI_HOT = LABELS.to_dense()


def layer(share: str) -> LSHLinear:
    torch.manual_seed(0)
    return LSHLinear(8, NEURONS, sampling=Sampling(limit=20, floor=40), share=share)


def softmax_reference(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    shares = targets / targets.sum(1, keepdim=True).clamp(min=1)
    return -(F.log_softmax(logits, 1).nan_to_num(neginf=0) * shares).sum() / len(targets)


def sigmoid_reference(logits: torch.Tensor, targets: torch.Tensor, active: torch.Tensor):
    each = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return (each * active).sum() / len(targets)


def chosen_mask(outputs) -> torch.Tensor:
    active, _ = outputs.choose(None)
    mask = torch.zeros(outputs.shape)
    if active.offsets is None:
        mask[:, active.rows] = 1
    else:
        mask[active.samples(), active.rows] = 1
    return mask


@pytest.mark.parametrize("share", ["batch", "sample"])
@pytest.mark.parametrize("loss", [LSHSoftmaxLoss(), LSHSigmoidLoss()], ids=["softmax", "sigmoid"])
@pytest.mark.parametrize("batches_before", [0, 1], ids=["first", "with-tables"])
def test_value_and_gradients_are_those_of_the_chosen_neurons(share, loss, batches_before):
    ours = layer(share)
    for _ in range(batches_before):
        loss(ours(torch.randn(4, 8)), LABELS)
    x = torch.randn(4, 8, requires_grad=True)
    outputs = ours(x)
    value = loss(outputs, LABELS)
    gradients = torch.autograd.grad(value, [x, ours.weight, ours.bias])
    mask = chosen_mask(outputs)
    assert (mask[MULTI_HOT > 0] == 1).all()
    assert mask.sum() < 400
    logits = F.linear(x, ours.weight, ours.bias)
    if isinstance(loss, LSHSoftmaxLoss):
        expected = softmax_reference(logits.masked_fill(mask == 0, -torch.inf), MULTI_HOT)
    else:
        expected = sigmoid_reference(logits, MULTI_HOT, mask)
    torch.testing.assert_close(value, expected)
    for gradient, peer in zip(
        gradients, torch.autograd.grad(expected, [x, ours.weight, ours.bias]), strict=True
    ):
        torch.testing.assert_close(gradient.to_dense(), peer, rtol=1e-4, atol=1e-6)


def test_over_all_outputs_they_are_those_of_torch():
    logits = torch.randn(4, NEURONS, requires_grad=True)
    labels = torch.tensor([0, 999, 5, 5])
    torch.testing.assert_close(LSHSoftmaxLoss()(logits, labels), F.cross_entropy(logits, labels))
    everybody = torch.ones(4, NEURONS)
    torch.testing.assert_close(
        LSHSigmoidLoss()(logits, LABELS), sigmoid_reference(logits, MULTI_HOT, everybody)
    )
    torch.testing.assert_close(
        LSHSoftmaxLoss()(logits, LABELS), softmax_reference(logits, MULTI_HOT)
    )


def test_evaluating_in_parts_gives_the_same(monkeypatch):
    logits = torch.randn(4, NEURONS)
    whole = [loss(logits, LABELS) for loss in (LSHSoftmaxLoss(), LSHSigmoidLoss())]
    monkeypatch.setattr("manyhands.sparse.losses._AT_ONCE", 1500)
    parts = [loss(logits, LABELS) for loss in (LSHSoftmaxLoss(), LSHSigmoidLoss())]
    torch.testing.assert_close(parts, whole)


def test_targets_in_every_form_are_the_same_labels():
    logits = torch.randn(4, NEURONS)
    expected = LSHSoftmaxLoss()(logits, LABELS)
    for targets in (LABELS.to_torch(), LABELS.to_torch(torch.sparse_csr), MULTI_HOT):
        torch.testing.assert_close(LSHSoftmaxLoss()(logits, targets), expected)
    numbers = torch.tensor([1, 2, 3, 4])
    torch.testing.assert_close(
        LSHSoftmaxLoss()(logits, numbers.int()), LSHSoftmaxLoss()(logits, numbers)
    )


@pytest.mark.parametrize("share", ["batch", "sample"])
@pytest.mark.parametrize("loss", [LSHSoftmaxLoss(), LSHSigmoidLoss()], ids=["softmax", "sigmoid"])
def test_an_empty_batch_gives_zero_and_no_gradient(share, loss):
    ours = layer(share)
    for _ in range(2):
        value = loss(ours(torch.randn(0, 8)), CSR.from_lists([], NEURONS))
        assert float(value.detach()) == 0
        value.backward()
    assert ours.weight.grad.to_dense().abs().sum() == 0


@pytest.mark.parametrize("share", ["batch", "sample"])
def test_a_batch_of_one_and_samples_in_more_dimensions(share):
    ours = layer(share)
    one = LSHSoftmaxLoss()(ours(torch.randn(8)), torch.tensor([7]))
    assert one.dim() == 0
    outputs = ours(torch.randn(2, 3, 8))
    LSHSoftmaxLoss()(outputs, torch.randint(NEURONS, (2, 3))).backward()
    assert outputs.shape == (2, 3, NEURONS)
    assert outputs.dense.shape == (2, 3, NEURONS)


@pytest.mark.parametrize(
    ("targets", "error", "message"),
    [
        (
            torch.tensor([0, 1, 2, 1000]),
            DataError,
            "label is 1000; expected 0 to 999.*1000 outputs",
        ),
        (torch.tensor([0, 1, 2, -100]), DataError, "label is -100"),
        (CSR.from_lists([[2000], [], [], []], 2001), DataError, "label is 2000"),
        (torch.tensor([0, 1]), DataError, "targets for 2 samples and outputs for 4"),
        (torch.zeros(4), DataError, r"torch.float32 of shape \[4\]"),
        ([1, 2, 3, 4], DataError, "targets are list"),
    ],
    ids=["too-large", "negative", "csr-too-large", "too-few", "not-whole", "list"],
)
@pytest.mark.parametrize("training", [True, False])
def test_wrong_targets_are_named(targets, error, message, training):
    ours = layer("batch").train(training)
    with pytest.raises(error, match=message):
        LSHSoftmaxLoss()(ours(torch.randn(4, 8)), targets)


def test_what_is_no_output_is_refused():
    with pytest.raises(ModelError, match="outputs are list"):
        LSHSoftmaxLoss()([1.0], torch.tensor([0]))


def test_labels_wider_than_the_layer_are_fine_while_none_is_beyond_it():
    wide = CSR.from_lists([[3, 998], [], [500], [3]], 5000)
    logits = torch.randn(4, NEURONS)
    torch.testing.assert_close(LSHSoftmaxLoss()(logits, wide), LSHSoftmaxLoss()(logits, LABELS))


def test_large_logits_do_not_overflow():
    ours = layer("sample")
    with torch.no_grad():
        ours.weight.mul_(10_000)
    value = LSHSoftmaxLoss()(ours(torch.randn(4, 8)), LABELS)
    assert torch.isfinite(value.detach())
