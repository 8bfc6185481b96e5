"""LSHLinear: nn.Linear in eval, a few neurons in training, tables that follow the weights."""

import copy
import pickle
import threading
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from manyhands import optim
from manyhands.errors import ConfigError, ModelError
from manyhands.sparse import (
    ActiveOutputs,
    LSHLinear,
    LSHSoftmaxLoss,
    MinHash,
    Refresh,
    RowOptimizer,
    Sampling,
    SimHash,
)

NEURONS = 1200
LOSS = LSHSoftmaxLoss()


def layer(**settings) -> LSHLinear:
    torch.manual_seed(0)
    usual = {"sampling": Sampling(limit=40, floor=60), "refresh": Refresh(beside=False)}
    return LSHLinear(16, NEURONS, **(usual | settings))


def batch(samples: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 16, generator=generator)
    return x, torch.randint(NEURONS, (samples,), generator=generator)


def train(ours: LSHLinear, steps: int, rule: optim.Rule | None = None) -> list[float]:
    optimizer = RowOptimizer(ours.parameters(), rule or optim.Adam(lr=0.05))
    losses = []
    for number in range(steps):
        x, y = batch(seed=number % 3)
        optimizer.zero_grad()
        loss = LOSS(ours(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_eval_gives_all_outputs_as_a_linear_layer_does():
    ours, (x, _) = layer().eval(), batch()
    outputs = ours(x)
    assert type(outputs) is torch.Tensor
    torch.testing.assert_close(outputs, F.linear(x, ours.weight, ours.bias))


@pytest.mark.parametrize("bias", [True, False])
def test_weights_to_and_from_a_linear_layer(bias):
    plain = nn.Linear(16, NEURONS, bias=bias)
    ours = LSHLinear.from_linear(plain, sampling=Sampling(limit=40, floor=60), share="sample")
    assert ours.share == "sample"
    assert ours.weight.data_ptr() != plain.weight.data_ptr()
    x, _ = batch()
    torch.testing.assert_close(ours.eval()(x), plain(x))
    train(ours.train(), 3)
    plain.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours.eval()(x), plain(x))


@pytest.mark.parametrize("share", ["batch", "sample"])
@pytest.mark.parametrize(
    "family", [None, SimHash(hashes=6), MinHash(hashes=2)], ids=["dwta", "simhash", "minhash"]
)
def test_it_learns_while_it_computes_few_neurons(share, family):
    ours = layer(share=share, family=family, refresh=Refresh(first=5, new_functions_every=3))
    losses = train(ours, 60)
    assert losses[-1] < 0.3 * losses[0]
    ours.eval()
    right = 0
    for seed in range(3):
        x, y = batch(seed=seed)
        right += int((ours(x).argmax(1) == y).sum())
    assert right >= 15


def test_gradients_are_rows_with_every_label_among_them():
    ours, (x, y) = layer(), batch()
    for _ in range(2):
        ours.zero_grad()
        LOSS(ours(x), y).backward()
        for parameter in ours.parameters():
            rows = parameter.grad.coalesce().indices()[0].tolist()
            assert set(y.tolist()) <= set(rows)
            assert len(rows) <= 66


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_frozen_parameters_get_no_gradient(frozen):
    ours, (x, y) = layer(), batch()
    getattr(ours, frozen).requires_grad_(False)
    for _ in range(2):
        LOSS(ours(x), y).backward()
    assert getattr(ours, frozen).grad is None
    assert (ours.bias if frozen == "weight" else ours.weight).grad is not None


def test_an_input_that_needs_a_gradient_gets_one_and_one_that_does_not_doesnt():
    ours, (x, y) = layer(), batch()
    LOSS(ours(x), y).backward()
    assert x.grad is None
    x.requires_grad_()
    LOSS(ours(x), y).backward()
    assert x.grad.abs().sum() > 0


def test_a_layer_used_twice_adds_its_gradients_up():
    ours, (x, y) = layer(), batch()
    other, _ = batch(seed=9)
    both = ours(x), ours(other)
    (LOSS(both[0], y) + LOSS(both[1], y)).backward()
    total = ours.weight.grad.to_dense()
    expected = torch.zeros_like(total)
    for inputs, outputs in zip((x, other), both, strict=True):
        active, _ = outputs.choose(None)
        logits = F.linear(inputs, ours.weight, ours.bias)
        mask = torch.ones(NEURONS, dtype=torch.bool)
        mask[active.rows] = False
        logits = logits.masked_fill(mask, -torch.inf)
        expected += torch.autograd.grad(F.cross_entropy(logits, y), ours.weight)[0]
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-6)


def test_two_sparse_layers_in_one_net_learn():
    torch.manual_seed(0)
    sampling = Sampling(limit=150, floor=200)
    net = nn.Sequential(
        nn.Linear(16, 24),
        nn.ReLU(),
        LSHLinear(24, NEURONS, sampling=sampling),
        nn.ReLU(),
        LSHLinear(NEURONS, 2000, sampling=sampling, family=SimHash(hashes=6, density=0.1)),
    )
    optimizer = RowOptimizer(net.parameters(), optim.Adam(lr=0.01))
    x, y = batch(32)
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        loss = LOSS(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]


# --- the tables


def test_the_first_batch_builds_no_tables_and_the_second_does():
    ours, (x, y) = layer(), batch()
    assert ours._neurons.current(ours.weight) is None
    LOSS(ours(x), y).backward()
    assert ours._neurons.current(ours.weight) is None
    LOSS(ours(x), y).backward()
    assert ours._neurons.current(ours.weight) is not None
    assert ours.index is ours.index


def test_without_gradients_nothing_is_built_marked_or_counted():
    ours, (x, y) = layer(), batch()
    with torch.no_grad():
        for _ in range(3):
            assert isinstance(ours(x), ActiveOutputs)
            LOSS(ours(x), y)
    assert ours._neurons.current(ours.weight) is None
    index = ours.index
    with torch.no_grad():
        LOSS(ours(x), y)
    assert index.changed == 0


def test_rows_that_a_batch_moved_are_marked_when_the_next_one_comes():
    ours, (x, y) = layer(), batch()
    index = ours.index
    outputs = ours(x)
    LOSS(outputs, y).backward()
    moved = len(outputs.choose(None)[0].rows)
    assert index.changed == 0
    LOSS(ours(x), y).backward()
    assert index.changed == moved
    ours.rows_changed(torch.arange(NEURONS))
    assert index.changed == NEURONS


def test_refreshes_come_when_they_are_due():
    ours = layer(refresh=Refresh(first=4, growth=0.0, beside=False))
    index = ours.index
    train(ours, 3)
    assert index.changed > 0
    train(ours, 1)
    assert index.changed == 0
    ours.rows_changed(torch.tensor([5]))
    ours.count_steps(4)
    assert index.changed == 0


def test_tables_are_built_anew_for_other_weights():
    ours = layer()
    first = ours.index
    ours.load_state_dict(layer(seed=1).state_dict())
    second = ours.index
    assert second is not first
    ours.weight.data = ours.weight.data.clone()
    third = ours.index
    assert third is not second
    ours.forget_tables()
    assert ours.index is not third
    assert ours._neurons.current(ours.weight) is not None


def test_a_net_that_loads_weights_builds_its_tables_anew():
    net = nn.Sequential(layer())
    first = net[0].index
    net.load_state_dict(nn.Sequential(layer()).state_dict())
    assert net[0].index is not first


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_have_no_tables_and_train_alike(copied):
    ours = layer()
    twin = copied(ours)
    losses = train(ours, 5), train(twin, 5)
    assert losses[0] == losses[1]
    another = copied(ours)
    assert another._neurons.current(another.weight) is None
    assert another.family == ours.family
    torch.testing.assert_close(another.eval()(batch()[0]), ours.eval()(batch()[0]))


def test_the_state_dict_is_that_of_a_linear_layer():
    ours = layer()
    ours.index  # noqa: B018
    assert list(ours.state_dict()) == ["weight", "bias"]


def test_one_seed_repeats_a_run_and_another_does_not():
    runs = []
    for seed in (5, 5, 6):
        ours = layer()
        torch.manual_seed(seed)
        runs.append(train(ours, 6))
    assert runs[0] == runs[1] != runs[2]


def test_seeds_follow_each_other():
    ours = layer()
    first = ours.next_seed()
    assert ours.next_seed(3) == first + 1
    assert ours.next_seed() == first + 4


def test_it_trains_on_a_thread_of_its_own():
    ours, found = layer(refresh=Refresh(first=2)), []
    thread = threading.Thread(target=lambda: found.extend(train(ours, 10)))
    thread.start()
    thread.join(timeout=60)
    assert len(found) == 10


# --- the largest outputs


def test_topk_is_that_of_all_outputs(monkeypatch):
    ours, (x, _) = layer(), batch()
    expected = F.linear(x, ours.weight, ours.bias).topk(5)
    for _ in range(2):
        values, indices = ours.topk(x, 5)
        torch.testing.assert_close(values, expected.values)
        assert torch.equal(indices, expected.indices)
        assert not values.requires_grad
        monkeypatch.setattr("manyhands.sparse.search._AT_ONCE", 2 * NEURONS)
    assert ours.topk(x[0], 3)[1].shape == (3,)
    assert ours.topk(x[:0], 3)[1].shape == (0, 3)


def test_topk_through_the_tables_finds_what_was_learnt_and_recall_says_how_much():
    ours = layer(family=SimHash(hashes=6))
    train(ours, 60)
    hits = 0
    for seed in range(3):
        x, y = batch(seed=seed)
        values, indices = ours.topk(x, 3, exact=False)
        torch.testing.assert_close(values, F.linear(x, ours.weight, ours.bias).gather(1, indices))
        assert (values.diff(dim=1) <= 0).all()
        hits += int((indices[:, 0] == y).sum())
        assert all(len(set(row)) == 3 for row in indices.tolist())
    assert hits >= 14
    assert ours.topk(x[:0], 3, exact=False)[1].shape == (0, 3)
    assert 0.3 < ours.recall(x, 1) <= 1.0
    everything = layer(sampling=Sampling(limit=NEURONS // 2, floor=0))
    assert 0.0 <= everything.recall(x, 10) <= 1.0


def test_topk_sees_weights_that_moved_since_the_tables_were_built():
    ours = layer()
    ours.index  # noqa: B018
    x, _ = batch(1)
    with torch.no_grad():
        ours.weight[77] = 10 * x[0]
    ours.rows_changed(torch.tensor([77]))
    assert ours.topk(x, 1, exact=False)[1].item() == 77


# --- what doesn't fit


def test_few_outputs_are_all_computed_and_that_is_said_once():
    with pytest.warns(UserWarning, match=r"10 outputs.*nn\.Linear") as seen:
        few = LSHLinear(16, 10)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x, y = batch()
        y = y % 10
        outputs = few(x)
        torch.testing.assert_close(outputs, F.linear(x, few.weight, few.bias))
        torch.testing.assert_close(LOSS(outputs, y), F.cross_entropy(outputs, y))
        losses = train_few(few)
        copy.deepcopy(few)
        few.topk(x, 3)
        assert few.recall(x, 3) == 1.0
    assert losses[-1] < losses[0]


def train_few(few: LSHLinear) -> list[float]:
    optimizer = RowOptimizer(few.parameters(), optim.SGD(lr=0.5, momentum=0.9))
    losses = []
    for _ in range(10):
        x, y = batch()
        optimizer.zero_grad()
        loss = LOSS(few(x), y % 10)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.randn(3, 15), r"shape \[3, 15\]; expected \[batch, 16\]"),
        (torch.tensor(1.0), r"shape \[\]"),
        (torch.randn(3, 16).double(), r"torch\.float64; expected torch\.float32"),
        (torch.randn(3, 16).bfloat16(), r"torch\.bfloat16"),
        (torch.ones(3, 16, dtype=torch.int64), r"torch\.int64"),
        (torch.eye(16).to_sparse(), "torch.sparse_coo; expected a dense tensor"),
        ([1.0], "input is list"),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_a_wrong_input_is_named(x, message, training):
    with pytest.raises(ModelError, match=message):
        layer().train(training)(x)


@pytest.mark.parametrize(
    "convert", [lambda m: m.half(), lambda m: m.double(), lambda m: m.to(torch.bfloat16)]
)
def test_other_precisions_are_refused_and_leave_the_layer_as_it_was(convert):
    ours = layer()
    with pytest.raises(ModelError, match="can't be moved to torch"):
        convert(nn.Sequential(ours))
    assert ours.weight.dtype == torch.float32
    assert ours.float() is ours
    assert ours.cpu() is ours


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": "epoch"}, "share is 'epoch'; expected 'batch' or 'sample'"),
        ({"filling": "lifo"}, "filling is 'lifo'"),
        ({"family": "dwta"}, "family is 'dwta'.*DWTA"),
        ({"sampling": 40}, "sampling is 40"),
        ({"refresh": 50}, "refresh is 50"),
        ({"bucket": 0}, "bucket is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        layer(**settings)
    with pytest.raises(ConfigError, match=r"out_features is 2\.5"):
        LSHLinear(16, 2.5)


def test_whole_numbers_of_numpy_are_whole_numbers():
    ours = LSHLinear(np.int64(16), np.int64(NEURONS))
    assert type(ours.out_features) is int
    assert ours.topk(torch.randn(2, 16), np.int32(3))[1].shape == (2, 3)


@pytest.mark.parametrize("share", ["batch", "sample"])
@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.randn(NEURONS + 1, 16), rf"shape \[{NEURONS + 1}, 16\]"),
        (torch.randn(16, NEURONS).T, "contiguous memory"),
    ],
    ids=["shape", "transposed"],
)
def test_a_weight_that_does_not_fit_is_named(weight, message, share):
    ours = layer(share=share)
    ours.weight = nn.Parameter(weight)
    for training in (True, False):
        with pytest.raises(ModelError, match=message):
            ours.train(training)(torch.randn(3, 16))


def test_a_weight_that_is_computed_is_refused_while_training():
    ours = nn.utils.parametrizations.weight_norm(layer())
    with pytest.raises(ModelError, match=r"weight_norm.*expected an nn.Parameter"):
        ours(torch.randn(3, 16))
    assert ours.eval()(torch.randn(3, 16)).shape == (3, NEURONS)


@pytest.mark.parametrize(
    "rows",
    [[3, 5], np.array([3, 5]), torch.arange(NEURONS) % 700 == 3],
    ids=["list", "array", "mask"],
)
def test_changed_rows_are_named_in_any_form(rows):
    ours = layer()
    index = ours.index
    ours.rows_changed(rows)
    assert index.changed == 2


def test_k_beyond_the_outputs_is_named():
    with pytest.raises(ConfigError, match="k is 1201; expected a whole number from 1"):
        layer().topk(batch()[0], 1201)


def test_it_describes_itself():
    assert "DWTA" in repr(layer())
    assert "share='batch'" in repr(layer())
