"""The native trainer against PyTorch's autograd and the same update rule, active neurons given."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from manyhands import _native, kernels

RULES = {
    "sgd": {},
    "adagrad": {"eps": 1e-10},
    "adam": {"eps": 1e-8},
    "adamw": {"eps": 1e-8, "weight_decay": 0.0},
}


@dataclass
class Net:
    """Weights of a net with a wide output, and their optimizer states."""

    features: int
    hidden: tuple[int, ...]
    neurons: int
    rule: str = "adam"
    sparse: bool = True
    bias: bool = True
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    states: dict[str, list[torch.Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.parameters:
            return
        generator = torch.Generator().manual_seed(1)
        widths = (self.features, *self.hidden)
        for number, (inputs, outputs) in enumerate(zip(widths, self.hidden, strict=False)):
            first = number == 0 and self.sparse
            shape = (inputs, outputs) if first else (outputs, inputs)
            self._add(f"w{number}", shape, generator)
            self._add(f"b{number}", (outputs,), generator)
        self._add("w", (self.neurons, self.hidden[-1]), generator)
        self._add("b", (self.neurons,), generator)

    def _add(self, name: str, shape: tuple[int, ...], generator: torch.Generator) -> None:
        if name.startswith("b") and not self.bias:
            return
        self.parameters[name] = torch.randn(shape, generator=generator) * 0.3
        count = self.native_rule.states
        self.states[name] = [torch.zeros(shape) for _ in range(count)]

    @property
    def native_rule(self) -> kernels.Rule:
        return kernels.Rule(self.rule, **RULES[self.rule])  # type: ignore[arg-type]

    def copy(self) -> Net:
        return replace(
            self,
            parameters={n: p.clone() for n, p in self.parameters.items()},
            states={n: [s.clone() for s in states] for n, states in self.states.items()},
        )


@dataclass
class Samples:
    """Features and labels in compressed rows, dense features, and active neurons by set."""

    offsets: torch.Tensor
    columns: torch.Tensor
    values: torch.Tensor | None
    dense: torch.Tensor
    label_offsets: torch.Tensor
    labels: torch.Tensor
    active_offsets: torch.Tensor
    active: torch.Tensor

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def labels_of(self, sample: int) -> torch.Tensor:
        return self.labels[self.label_offsets[sample] : self.label_offsets[sample + 1]].long()

    def active_of(self, number: int) -> torch.Tensor:
        return self.active[self.active_offsets[number] : self.active_offsets[number + 1]].long()


def offsets_of(rows: list[Any]) -> torch.Tensor:
    return torch.tensor([0, *np.cumsum([len(row) for row in rows])], dtype=torch.int64)


def random_samples(
    net: Net, count: int, set_size: int, *, extra: int = 20, ones: bool = False
) -> Samples:
    """Samples with repeated features, without features and without labels among them."""
    random = np.random.default_rng(5)
    features = [random.integers(0, net.features, random.integers(0, 9)) for _ in range(count)]
    features[0] = np.array([1, 1, 0], dtype=np.int64)  # a feature twice
    labels = [random.integers(0, net.neurons, random.integers(0, 4)) for _ in range(count)]
    if count > 1:
        labels[1] = labels[1][:0]
    sets = []
    for first in range(0, count, set_size):
        wanted = np.concatenate(labels[first : first + set_size])
        sets.append(np.unique(np.concatenate([wanted, random.integers(0, net.neurons, extra)])))
    columns = np.concatenate(features).astype(np.int32)
    values = None if ones else random.normal(size=len(columns)).astype(np.float32)
    return Samples(
        offsets_of(features),
        torch.from_numpy(columns),
        None if values is None else torch.from_numpy(values),
        torch.from_numpy(random.normal(size=(count, net.features)).astype(np.float32)),
        offsets_of(labels),
        torch.from_numpy(np.concatenate(labels).astype(np.int32)),
        offsets_of(sets),
        torch.from_numpy(np.concatenate(sets).astype(np.int32)),
    )


def trainer_of(
    net: Net,
    *,
    max_batch: int,
    threads: int,
    share: str,
    loss: str,
    collect: bool = False,
    narrow: bool = False,
) -> kernels.SparseTrainer:
    trainer = kernels.SparseTrainer(max_batch, threads)
    p, s = net.parameters, net.states
    for number in range(len(net.hidden)):
        w, b = f"w{number}", f"b{number}"
        sparse = net.sparse and number == 0
        trainer.hidden(p[w], p.get(b), s[w], s.get(b, []), sparse=sparse)
    trainer.output(p["w"], p.get("b"), s["w"], s.get("b", []))
    trainer.finish(net.native_rule, share=share, loss=loss, collect=collect, narrow=narrow)
    return trainer


def train(
    net: Net,
    samples: Samples,
    batch: int,
    *,
    threads: int = 1,
    share: str = "batch",
    loss: str = "softmax",
    trainer: kernels.SparseTrainer | None = None,
    rate: float = 0.05,
    seed: int = 0,
) -> np.ndarray:
    if trainer is None:
        trainer = trainer_of(net, max_batch=batch, threads=threads, share=share, loss=loss)
    batches = -(-len(samples) // batch)
    losses = np.full(batches, math.nan)
    inputs: dict[str, Any] = {"dense": samples.dense}
    if net.sparse:
        inputs = {
            "offsets": samples.offsets,
            "columns": samples.columns,
            "values": samples.values,
        }
    done = trainer.train(
        **inputs,
        label_offsets=samples.label_offsets,
        labels=samples.labels,
        batch_size=batch,
        rates=np.full(batches, rate),
        first_step=1,
        seed=seed,
        losses=losses,
        active_offsets=samples.active_offsets,
        active=samples.active,
    )
    return losses[: min(done + 1, batches)]


def hidden_outputs(net: Net, p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    for number in range(len(net.hidden)):
        weight = p[f"w{number}"]
        x = x @ weight if net.sparse and number == 0 else x @ weight.T
        x = torch.relu(x + p[f"b{number}"] if net.bias else x)
    return x


def reference_loss(
    net: Net, p: dict[str, torch.Tensor], samples: Samples, part: range, active: Any, loss: str
) -> torch.Tensor:
    """The loss of these samples as docs/sparse.md defines it, whose mean counts all of them."""
    total = torch.zeros(())
    h = hidden_outputs(net, p, inputs_of(net, samples)[part.start : part.stop])
    for at, sample in enumerate(part):
        rows = active(sample)
        z = p["w"][rows] @ h[at] + (p["b"][rows] if net.bias else 0.0)
        labels = samples.labels_of(sample)
        places = torch.searchsorted(rows, labels)
        if loss == "sigmoid":
            targets = torch.zeros(len(rows)).index_add(0, places, torch.ones(len(places)))
            total = total + F.softplus(z).sum() - (targets * z).sum()
        elif len(labels):
            total = total + torch.logsumexp(z, 0) - z[places].mean()
    return total


def inputs_of(net: Net, samples: Samples) -> torch.Tensor:
    if not net.sparse:
        return samples.dense
    dense = torch.zeros(len(samples), net.features)
    rows = torch.repeat_interleave(samples.offsets.diff())
    values = torch.ones(len(samples.columns)) if samples.values is None else samples.values
    return dense.index_put((rows, samples.columns.long()), values, accumulate=True)


def reference_step(
    net: Net, samples: Samples, part: range, active: Any, *, loss: str, share: float, step: int
) -> float:
    """One update by autograd: dense parameters whole, the others in the rows that are touched."""
    p = {n: t.clone().requires_grad_() for n, t in net.parameters.items()}
    value = reference_loss(net, p, samples, part, active, loss)
    if value.requires_grad:
        (value * share).backward()
    touched = torch.cat([active(sample) for sample in part]).unique()
    features = samples.columns[samples.offsets[part.start] : samples.offsets[part.stop]]
    for name, tensor in net.parameters.items():
        gradient = p[name].grad if p[name].grad is not None else torch.zeros_like(tensor)
        rows = None
        if name in ("w", "b"):
            rows = touched
        elif name == "w0" and net.sparse:
            rows = features.long().unique()
        if rows is None:
            arguments = ([tensor.view(-1)], [gradient.reshape(-1)])
            states = [[s.view(-1) for s in net.states[name]]]
            kernels.update(net.native_rule, 0.05, step, 1.0, *arguments, states)
        else:
            matrix, grads = tensor.view(len(tensor), -1), gradient.view(len(tensor), -1)[rows]
            states = [s.view(len(s), -1) for s in net.states[name]]
            kernels.update_rows(net.native_rule, 0.05, step, 1.0, matrix, rows, grads, states)
    return float(value.detach())


def reference(net: Net, samples: Samples, batch: int, *, share: str, loss: str) -> np.ndarray:
    losses = []
    for number, first in enumerate(range(0, len(samples), batch)):
        part = range(first, min(first + batch, len(samples)))
        if share == "batch":
            steps = [(part, lambda _, n=number: samples.active_of(n))]
        else:
            steps = [(range(i, i + 1), samples.active_of) for i in part]
        total = sum(
            reference_step(net, samples, r, active, loss=loss, share=1 / len(part), step=number + 1)
            for r, active in steps
        )
        losses.append(total / len(part))
    return np.array(losses)


def assert_same(seen: Net, expected: Net, tolerance: float = 2e-4) -> None:
    for name, tensor in expected.parameters.items():
        torch.testing.assert_close(
            seen.parameters[name],
            tensor,
            rtol=tolerance,
            atol=tolerance,
            msg=lambda m, n=name: n + m,
        )


def compare(net: Net, count: int, batch: int, *, share: str, loss: str, **options: Any) -> None:
    ones = options.pop("ones", False)
    samples = random_samples(net, count, batch if share == "batch" else 1, ones=ones)
    expected = net.copy()
    losses = reference(expected, samples, batch, share=share, loss=loss)
    seen = train(net, samples, batch, share=share, loss=loss, **options)
    np.testing.assert_allclose(seen, losses, rtol=1e-4, atol=1e-5)
    assert_same(net, expected)


@pytest.mark.parametrize("share", ["batch", "sample"])
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_rule_and_loss_moves_the_weights_as_autograd_does(
    rule: str, loss: str, share: str
) -> None:
    net = Net(40, (33,), 300, rule=rule)
    compare(net, 50, 20, share=share, loss=loss)


@pytest.mark.parametrize("share", ["batch", "sample"])
@pytest.mark.parametrize("hidden", [(7,), (33,), (130,), (64, 20), (17, 40, 9)])
@pytest.mark.parametrize("sparse", [True, False])
def test_every_width_and_depth(hidden: tuple[int, ...], sparse: bool, share: str) -> None:
    compare(Net(40, hidden, 300, sparse=sparse), 50, 37, share=share, loss="softmax")


@pytest.mark.parametrize("batch", [1, 2, 15, 16, 17, 31, 64])
def test_every_batch_size_and_a_short_last_batch(batch: int) -> None:
    compare(Net(40, (24,), 300), 2 * batch + 1, batch, share="batch", loss="softmax")


def test_without_biases_and_with_ones_for_values() -> None:
    compare(Net(40, (24, 8), 300, bias=False), 30, 20, share="batch", loss="softmax", ones=True)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_many_active_neurons(loss: str) -> None:
    """More than a block, a unit of work and the depth that stays in the cache."""
    net = Net(40, (24,), 1200)
    samples = random_samples(net, 40, 20, extra=2000)
    expected = net.copy()
    losses = reference(expected, samples, 20, share="batch", loss=loss)
    np.testing.assert_allclose(train(net, samples, 20, loss=loss), losses, rtol=1e-4)
    assert_same(net, expected)


@pytest.mark.parametrize("simd", _native.simd_choices())
def test_every_instruction_set(simd: str) -> None:
    before = _native.simd()
    _native.use_simd(simd)
    try:
        compare(Net(40, (33, 24), 300), 50, 20, share="batch", loss="sigmoid")
        compare(Net(40, (33, 24), 300), 50, 20, share="sample", loss="softmax")
    finally:
        _native.use_simd(before)


@pytest.mark.parametrize("sparse", [True, False])
def test_results_do_not_depend_on_the_number_of_threads(sparse: bool) -> None:
    first = Net(400, (40, 24), 1200, sparse=sparse)
    nets = [first, first.copy(), first.copy(), first.copy()]
    samples = random_samples(first, 300, 100, extra=700)
    losses = [train(net, samples, 100, threads=n + 1) for n, net in enumerate(nets)]
    for net, seen in zip(nets[1:], losses[1:], strict=True):
        assert seen.tolist() == losses[0].tolist()
        assert_same(net, first, tolerance=0.0)


def test_threads_that_race_on_samples_still_learn() -> None:
    net = Net(40, (24,), 300, rule="adagrad")
    samples = random_samples(net, 200, 1)
    trainer = trainer_of(net, max_batch=50, threads=4, share="sample", loss="softmax")
    first = train(net, samples, 50, trainer=trainer).mean()
    for _ in range(20):
        last = train(net, samples, 50, trainer=trainer).mean()
    assert last < 0.5 * first


@pytest.mark.parametrize("share", ["batch", "sample"])
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_before_the_update(
    broken: float, loss: str, share: str
) -> None:
    net = Net(40, (24,), 300)
    samples = random_samples(net, 3, 1)
    samples.values[samples.offsets[2]] = broken  # type: ignore[index]
    assert samples.offsets[3] > samples.offsets[2]
    net.parameters["w0"].abs_()  # nothing hides behind the ReLU
    expected = net.copy()
    reference(expected, part_of(samples, 2), 1, share=share, loss=loss)
    losses = train(net, samples, 1, share=share, loss=loss)
    assert len(losses) == 3
    assert not math.isfinite(losses[-1])
    assert_same(net, expected)


def part_of(samples: Samples, count: int) -> Samples:
    return replace(
        samples,
        offsets=samples.offsets[: count + 1],
        columns=samples.columns[: samples.offsets[count]],
        values=None if samples.values is None else samples.values[: samples.offsets[count]],
    )


def test_an_empty_active_set_moves_nothing() -> None:
    net = Net(40, (24,), 300)
    samples = replace(
        random_samples(net, 4, 4),
        label_offsets=torch.zeros(5, dtype=torch.int64),
        labels=torch.empty(0, dtype=torch.int32),
        active_offsets=torch.zeros(2, dtype=torch.int64),
        active=torch.empty(0, dtype=torch.int32),
    )
    before = net.copy()
    assert train(net, samples, 4).tolist() == [0.0]
    assert_same(net, before, tolerance=0.0)


def test_collected_gradients_are_autograds_and_rows_take_a_plain_step() -> None:
    net = Net(40, (24,), 300, rule="sgd")
    samples = random_samples(net, 20, 20)
    expected = net.copy()
    trainer = trainer_of(net, max_batch=20, threads=2, share="batch", loss="softmax", collect=True)
    train(net, samples, 20, trainer=trainer)
    before = {name: tensor.clone() for name, tensor in expected.parameters.items()}
    reference(expected, samples, 20, share="batch", loss="softmax")
    assert_same(net, expected)
    features, feature_grads, rows, grads, bias_grads = map(torch.from_numpy, trainer.collected())
    assert rows.tolist() == samples.active_of(0).tolist()
    assert features.tolist() == samples.columns.long().unique().tolist()
    for name, at, seen in (
        ("w0", features, feature_grads),
        ("w", rows, grads),
        ("b", rows, bias_grads),
    ):
        moved = (before[name] - expected.parameters[name])[at] / 0.05
        torch.testing.assert_close(seen, moved, rtol=1e-3, atol=1e-5)


def test_figures_count_rows_and_bytes() -> None:
    net = Net(40, (24,), 300)
    samples = random_samples(net, 50, 20)
    trainer = trainer_of(net, max_batch=20, threads=2, share="batch", loss="softmax")
    train(net, samples, 20, trainer=trainer)
    figures = trainer.figures()
    assert (figures["batches"], figures["samples"]) == (3, 50)
    assert figures["active_rows"] == len(samples.active)
    touched = [
        samples.columns[samples.offsets[i] : samples.offsets[min(i + 20, 50)]].unique()
        for i in (0, 20, 40)
    ]
    assert figures["feature_rows"] == sum(map(len, touched))
    # read once, then read and written with two states; every feature of a sample read once
    expected = len(samples.active) * 25 * 4 * 7
    expected += (len(samples.columns) + 6 * figures["feature_rows"]) * 24 * 4
    assert figures["bytes"] == expected
    assert all(figures[name] >= 0 for name in figures if name.endswith("_s"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.tensor([300], dtype=torch.int32)}, "A label is 300; expected 0 to 299"),
        ({"columns": torch.tensor([-1], dtype=torch.int32)}, "A feature is -1; expected 0 to 39"),
        ({"batch_size": 5}, "The batch size is 5; expected 1 to the trainer's 4"),
        ({"active": torch.tensor([1, 0], dtype=torch.int32)}, "not in order"),
        ({"active": torch.tensor([1, 3], dtype=torch.int32)}, "Label 0 is not among"),
        ({"offsets": torch.tensor([0, 2], dtype=torch.int64)}, "last offset of features is 2"),
        ({"label_offsets": torch.tensor([0], dtype=torch.int64)}, "1 offsets of labels"),
        ({"rates": np.ones(2)}, "2 rates"),
        ({"first_step": 0}, "The first step is 0; steps count from 1"),
        ({"values": torch.ones(3)}, "not as many values"),
        ({"active_offsets": None, "active": None}, "no index"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(change: dict[str, Any], message: str) -> None:
    net = Net(40, (24,), 300)
    before = net.copy()
    trainer = trainer_of(net, max_batch=4, threads=1, share="batch", loss="softmax")
    arguments: dict[str, Any] = {
        "offsets": torch.tensor([0, 1], dtype=torch.int64),
        "columns": torch.tensor([3], dtype=torch.int32),
        "values": None,
        "label_offsets": torch.tensor([0, 1], dtype=torch.int64),
        "labels": torch.tensor([0], dtype=torch.int32),
        "batch_size": 1,
        "rates": np.ones(1),
        "first_step": 1,
        "seed": 0,
        "losses": np.ones(1),
        "active_offsets": torch.tensor([0, 2], dtype=torch.int64),
        "active": torch.tensor([0, 3], dtype=torch.int32),
    }
    with pytest.raises(ValueError, match=message):
        trainer.train(**(arguments | change))
    assert_same(net, before, tolerance=0.0)


def test_rules_that_move_untouched_rows_are_refused() -> None:
    net = Net(40, (24,), 300, rule="sgd")
    trainer = kernels.SparseTrainer(4, 1)
    p = net.parameters
    trainer.hidden(p["w0"], p["b0"], [], [], sparse=True)
    trainer.output(p["w"], p["b"], [], [])
    with pytest.raises(ValueError, match="moves rows that have no gradient"):
        trainer.finish(kernels.Rule("sgd", momentum=0.1), share="batch", loss="softmax")
