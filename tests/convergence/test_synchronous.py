"""The synchronous strategy: with one worker plain PyTorch, bit for bit; with several, the same
numbers to rounding."""

import copy

import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.data.source import epoch_order
from tests.conftest import blobs, small_net

EPOCHS, BATCH, SEED = 2, 32, 5


def plain_pytorch(model, rule, points, labels, schedule=None):
    """The loop of a tutorial."""
    torch.manual_seed(SEED)
    optimizer = rule.torch_optimizer(model.parameters())
    loss_function = nn.CrossEntropyLoss()
    steps = -(-len(points) // BATCH)
    for epoch in range(EPOCHS):
        order = torch.randperm(len(points), generator=torch.Generator().manual_seed(SEED + epoch))
        for number, chosen in enumerate(order.split(BATCH)):
            if schedule is not None:
                for group in optimizer.param_groups:
                    group["lr"] = rule.lr * schedule(epoch * steps + number, EPOCHS * steps)
            optimizer.zero_grad()
            loss = loss_function(model(points[chosen]), labels[chosen])
            loss.backward()
            if rule.clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), rule.clip_norm)
            optimizer.step()


def net_with_dropout() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(20, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, 4)
    )


RULES = [
    mh.optim.SGD(lr=0.05),
    mh.optim.SGD(lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3, clip_norm=0.5),
    mh.optim.Adagrad(lr=0.05),
    mh.optim.Adam(lr=0.01),
    mh.optim.AdamW(lr=0.01),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("schedule", [None, mh.optim.OneCycle()], ids=["constant", "one-cycle"])
def test_one_worker_is_plain_pytorch_bit_for_bit(make_trainer, rule, schedule):
    points, labels = blobs(500)  # the last batch is short
    ours, plain = net_with_dropout(), net_with_dropout()
    trainer = make_trainer(ours, optimizer=rule, schedule=schedule, batch_size=BATCH, seed=SEED)
    trainer.fit((points, labels), epochs=EPOCHS)
    plain_pytorch(plain, rule, points, labels, schedule)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor), name


def test_the_order_is_the_one_documented():
    order = epoch_order(100, epoch=3, seed=4)
    expected = torch.randperm(100, generator=torch.Generator().manual_seed(7))
    assert order.tolist() == expected.tolist()


# The rules' own steps are those of one worker, above: two rules show that workers add up.
@pytest.mark.parametrize("rule", [RULES[1], RULES[-1]], ids=lambda rule: rule.name)
def test_several_workers_give_the_same_weights_to_rounding(make_trainer, rule, tmp_path):
    data = blobs(161)  # the last batch has one sample: fewer than workers
    one, three = small_net(), small_net()
    make_trainer(one, optimizer=rule, run_dir=tmp_path / "one").fit(data, epochs=2)
    make_trainer(
        three, optimizer=rule, strategy=mh.Synchronous(workers=3), run_dir=tmp_path / "three"
    ).fit(data, epochs=2)
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(three.state_dict()[name], tensor, rtol=2e-4, atol=2e-5)


def test_a_run_resumed_is_the_run_uninterrupted_bit_for_bit(make_trainer, tmp_path):
    data, rule = blobs(200), mh.optim.Adam(lr=0.01)
    whole, parts = net_with_dropout(), net_with_dropout()
    fresh = copy.deepcopy(parts)
    settings = {"optimizer": rule, "ema": 0.9, "batch_size": 16}
    make_trainer(whole, run_dir=tmp_path / "whole", **settings).fit(data, epochs=4)

    class StopAfterTwo(mh.Callback):
        def on_epoch_end(self, view):
            if view.epoch == 1:
                view.stop_reason = "enough"

    first = make_trainer(parts, callbacks=[StopAfterTwo()], run_dir=tmp_path / "parts", **settings)
    assert first.fit(data, epochs=4).reason == "enough"
    result = make_trainer(fresh, **settings).fit(data, epochs=4, resume=tmp_path / "parts")
    assert [record["epoch"] for record in result.history] == [0, 1, 2, 3]
    for name, tensor in whole.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], tensor), name
