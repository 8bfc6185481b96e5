"""A wide layer whose weights are trained as bfloat16, against the same in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from manyhands import _native, kernels
from tests.unit.sparse.test_sparse_trainer import (
    Net,
    assert_same,
    random_samples,
    train,
    trainer_of,
)


def narrow_trainer(net: Net, **options: Any) -> kernels.SparseTrainer:
    settings = {"max_batch": 20, "threads": 1, "share": "batch", "loss": "softmax", **options}
    return trainer_of(net, narrow=True, **settings)


def in_bfloat16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16().float()


@pytest.mark.parametrize("simd", _native.simd_choices())
@pytest.mark.parametrize("share", ["batch", "sample"])
@pytest.mark.parametrize("width", [7, 24, 33])  # narrower than a vector, whole vectors, a rest
def test_it_trains_as_float32_does_to_the_precision_of_bfloat16(
    simd: str, share: str, width: int
) -> None:
    before = _native.simd()
    _native.use_simd(simd)
    try:
        net = Net(40, (width,), 300)
        net.parameters["w"].copy_(in_bfloat16(net.parameters["w"]))
        first, exact = net.copy(), net.copy()
        samples = random_samples(net, 50, 20 if share == "batch" else 1)
        losses = train(net, samples, 20, trainer=narrow_trainer(net, share=share))
        expected = train(exact, samples, 20, share=share)
    finally:
        _native.use_simd(before)
    np.testing.assert_allclose(losses, expected, rtol=0.02)
    # A rounding moves a weight by less than one part in 128; a step of Adam's by far more.
    torch.testing.assert_close(net.parameters["w"], exact.parameters["w"], rtol=0.03, atol=0.01)
    moved = (net.parameters["w"] - first.parameters["w"])[samples.active.long()]
    assert moved.abs().max() > 0.05


@pytest.mark.parametrize("share", ["batch", "sample"])
def test_what_was_trained_is_written_back_exactly(share: str) -> None:
    net = Net(40, (24,), 300)
    first = net.copy()
    samples = random_samples(net, 50, 20 if share == "batch" else 1)
    trainer = narrow_trainer(net, share=share, threads=2)
    train(net, samples, 20, trainer=trainer)
    weight, touched = net.parameters["w"], samples.active.long().unique()
    assert torch.equal(weight[touched], in_bfloat16(weight[touched]))
    untouched = torch.ones(300, dtype=torch.bool).index_fill(0, touched, value=False)
    assert torch.equal(weight[untouched], first.parameters["w"][untouched])


def test_steps_below_the_precision_add_up() -> None:
    """Rounding to the nearest would leave every weight where it is."""
    net = Net(40, (24,), 300, rule="sgd")
    net.parameters["w"].fill_(1.0)  # the next bfloat16 is 1/128 away
    samples = random_samples(net, 20, 20)
    exact = net.copy()
    trainer = narrow_trainer(net)
    other = trainer_of(exact, max_batch=20, threads=1, share="batch", loss="softmax")
    for seed in range(100):
        train(net, samples, 20, trainer=trainer, rate=0.01, seed=seed)
        train(exact, samples, 20, trainer=other, rate=0.01, seed=seed)
    expected, seen = exact.parameters["w"] - 1.0, net.parameters["w"] - 1.0
    assert expected.abs().max() / 100 < 1 / 256  # less than half the distance in a step
    followed = (seen * expected).sum() / expected.square().sum()
    assert 0.8 < followed < 1.2


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    first = Net(400, (40, 24), 1200)
    nets = [first, first.copy(), first.copy()]
    samples = random_samples(first, 300, 100, extra=700)
    for number, net in enumerate(nets):
        trainer = narrow_trainer(net, max_batch=100, threads=number + 1)
        train(net, samples, 100, trainer=trainer)
    for net in nets[1:]:
        assert_same(net, first, tolerance=0.0)


def test_a_changed_weight_is_read_again() -> None:
    net = Net(40, (24,), 300)
    samples = random_samples(net, 20, 20)
    trainer = narrow_trainer(net)
    net.parameters["w"].fill_(0.5)
    trainer.take_weight()
    train(net, samples, 20, trainer=trainer, rate=0.0)
    assert (net.parameters["w"] == 0.5).all()


def test_its_rows_count_half_and_their_states_whole() -> None:
    net = Net(40, (24,), 300)
    samples = random_samples(net, 20, 20)
    counted = []
    for narrow in (False, True):
        one = net.copy()
        trainer = trainer_of(
            one, max_batch=20, threads=1, share="batch", loss="softmax", narrow=narrow
        )
        train(one, samples, 20, trainer=trainer)
        counted.append(trainer.figures()["bytes"])
    assert counted[0] - counted[1] == len(samples.active) * 24 * 2 * 3


def test_gradients_are_collected_in_float32_only() -> None:
    net = Net(40, (24,), 300)
    with pytest.raises(ValueError, match="expected them in float32"):
        trainer_of(
            net, max_batch=4, threads=1, share="batch", loss="softmax", collect=True, narrow=True
        )
