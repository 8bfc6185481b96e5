"""Outputs of a few neurons used as a tensor: zeros for the others, and no softmax over zeros."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from manyhands.errors import ModelError
from manyhands.sparse import ActiveOutputs, LSHLinear, LSHSoftmaxLoss, Sampling

NEURONS = 1000


def hidden(share: str = "batch", **settings) -> LSHLinear:
    torch.manual_seed(0)
    sampling = Sampling(limit=30, floor=50)
    return LSHLinear(8, NEURONS, sampling=sampling, share=share, **settings)


@pytest.mark.parametrize("share", ["batch", "sample"])
def test_as_a_tensor_it_has_zeros_where_neurons_are_inactive(share):
    layer, x = hidden(share), torch.randn(4, 8)
    outputs = layer(x)
    assert isinstance(outputs, ActiveOutputs)
    dense = outputs + 0
    active = dense != 0
    assert 20 <= int(active[0].sum()) <= 60
    torch.testing.assert_close(dense[active], F.linear(x, layer.weight, layer.bias)[active])
    assert torch.equal(outputs.dense, dense)


def test_every_way_to_use_it_is_that_of_a_tensor():
    layer, x, weight = hidden(), torch.randn(4, 8), torch.randn(3, NEURONS)
    outputs = layer(x)
    dense = outputs.dense
    same = [
        (F.relu(outputs), F.relu(dense)),
        (nn.ReLU()(outputs), F.relu(dense)),
        (torch.tanh(outputs), torch.tanh(dense)),
        (outputs.relu(), dense.relu()),
        (F.linear(outputs, weight), F.linear(dense, weight)),
        (outputs @ weight.T, dense @ weight.T),
        (weight @ outputs.T, weight @ dense.T),
        (1 - outputs, 1 - dense),
        (torch.ones(4, NEURONS) * outputs, dense),
        (torch.cat([outputs, outputs]), torch.cat([dense, dense])),
        (torch.stack(tensors=[outputs, dense]), torch.stack([dense, dense])),
        (F.mse_loss(outputs, torch.zeros(4, NEURONS)), dense.square().mean()),
        (outputs[1], dense[1]),
        (outputs == dense, dense == dense),
        (-outputs, -dense),
    ]
    for ours, theirs in same:
        assert torch.equal(ours, theirs)
    assert len(outputs) == 4
    assert len(list(outputs)) == 4
    assert outputs.shape == outputs.size() == (4, NEURONS)
    assert outputs.size(1) == NEURONS
    assert outputs.dim() == 2
    assert outputs.requires_grad
    assert "ActiveOutputs" in repr(outputs)
    assert hash(outputs) == hash(outputs)
    with pytest.raises(AttributeError):
        _ = outputs._no_such_thing


@pytest.mark.parametrize(
    "use",
    [
        lambda outputs: F.cross_entropy(outputs, torch.zeros(4, dtype=torch.int64)),
        lambda outputs: nn.CrossEntropyLoss()(outputs, torch.zeros(4, dtype=torch.int64)),
        lambda outputs: nn.BCEWithLogitsLoss()(outputs, torch.zeros(4, NEURONS)),
        lambda outputs: nn.Softmax(1)(outputs),
        lambda outputs: torch.softmax(outputs, 1),
        lambda outputs: outputs.log_softmax(1),
        lambda outputs: outputs.softmax(1),
        lambda outputs: torch.logsumexp(outputs, 1),
        lambda outputs: nn.BCELoss()(outputs.sigmoid(), torch.zeros(4, NEURONS)),
        lambda outputs: F.kl_div(outputs, torch.zeros(4, NEURONS)),
    ],
)
def test_a_softmax_over_outputs_that_were_not_computed_is_refused(use):
    with pytest.raises(ModelError, match=r"LSHSoftmaxLoss"):
        use(hidden()(torch.randn(4, 8)))


@pytest.mark.parametrize(
    "change",
    [
        lambda outputs: outputs / 2,
        lambda outputs: outputs + 0,
        nn.Dropout(0.1),
        nn.ReLU(inplace=True),
        lambda outputs: torch.cat([outputs, outputs]).view(2, 4, NEURONS)[0],
        lambda outputs: 0.5 * outputs.dense.clone(),
    ],
)
def test_outputs_that_were_changed_before_the_loss_are_refused(change):
    labels = torch.zeros(4, dtype=torch.int64)
    outputs = nn.Sequential(hidden())(torch.randn(4, 8))
    changed = change(outputs)
    with pytest.raises(ModelError, match="hand them to the loss as they are"):
        LSHSoftmaxLoss()(changed, labels)
    for use in (lambda t: F.cross_entropy(t, labels), lambda t: t.softmax(1), nn.LogSoftmax(1)):
        with pytest.raises(ModelError, match="LSHSoftmaxLoss"):
            use(changed)


def test_what_sums_over_the_outputs_is_an_ordinary_tensor():
    outputs = hidden()(torch.randn(4, 8))
    for mixed in (
        F.linear(torch.relu(outputs), torch.randn(NEURONS, NEURONS)),
        nn.Linear(NEURONS, 3)(outputs),
        outputs @ torch.randn(NEURONS, 3),
        torch.einsum("bn,nk->bk", outputs, torch.randn(NEURONS, NEURONS)),
        outputs.sum(),
        outputs.mean(1),
    ):
        assert type(mixed) is torch.Tensor
        assert mixed.requires_grad
    nn.CrossEntropyLoss()(nn.Linear(NEURONS, 3)(outputs), torch.zeros(4, dtype=torch.int64))


def test_the_loss_sees_the_neurons_that_were_chosen_with_its_labels():
    layer = hidden()
    outputs = layer(torch.randn(4, 8))
    labels = torch.tensor([1, 2, 3, 999])
    LSHSoftmaxLoss()(outputs, labels)
    assert (outputs.dense[0, labels] != 0).all()


def test_outputs_belong_to_the_forward_pass():
    layer, x = hidden(), torch.randn(4, 8)
    with torch.no_grad():
        outputs = layer(x)
    assert not LSHSoftmaxLoss()(outputs, torch.zeros(4, dtype=torch.int64)).requires_grad
    assert not outputs.requires_grad
    outputs = layer(x)
    with torch.no_grad():
        assert outputs.dense.requires_grad


def test_an_input_that_is_changed_before_the_outputs_are_used_is_named():
    layer, x = hidden(), torch.randn(4, 8)
    outputs = layer(x)
    x.mul_(2)
    with pytest.raises(ModelError, match="changed in place"):
        outputs.sum()


@pytest.mark.parametrize("share", ["batch", "sample"])
@pytest.mark.parametrize("inplace", [False, True])
def test_a_hidden_layer_before_a_plain_output_layer_learns(share, inplace):
    torch.manual_seed(0)
    wide = LSHLinear(8, NEURONS, sampling=Sampling(limit=200, floor=300), share=share)
    net = nn.Sequential(nn.Linear(10, 8), wide, nn.ReLU(inplace=inplace), nn.Linear(NEURONS, 5))
    x, y = torch.randn(16, 10), torch.randint(5, (16,))
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.05)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = nn.CrossEntropyLoss()(net(x), y)
        loss.backward()
        for parameter in net[1].parameters():
            assert parameter.grad.is_sparse
            parameter.grad = parameter.grad.to_dense()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.4 * losses[0]


def test_under_autocast_it_computes_in_float32():
    net = nn.Sequential(nn.Linear(10, 8), hidden())
    with torch.autocast("cpu", torch.bfloat16):
        outputs = net(torch.randn(4, 10))
        loss = LSHSoftmaxLoss()(outputs, torch.zeros(4, dtype=torch.int64))
    loss.backward()
    assert outputs.dense.dtype == torch.float32
    assert net[0].weight.grad.abs().sum() > 0
