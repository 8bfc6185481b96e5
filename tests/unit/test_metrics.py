"""Named metrics against numbers worked out by hand."""

import pytest
import torch

from manyhands import metrics
from manyhands.errors import ConfigError

OUTPUTS = torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, 1.0], [5.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
TARGETS = torch.tensor([0, 1, 1, 2])


def measure(choice, outputs=OUTPUTS, targets=TARGETS) -> float:
    metric = next(iter(metrics.start([choice]).values()))
    for start in range(0, len(outputs), 3):  # in uneven batches
        metric.update(outputs[start : start + 3], targets[start : start + 3])
    return metric.value()


def test_classification():
    assert measure("accuracy") == 0.75
    assert measure("top5") == 1.0
    # class 0: 2/(2+1), class 1: 2/(1+2), class 2: 1
    assert measure("f1") == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


def test_regression_and_labels_with_one_logit_each():
    outputs, targets = torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0], [3.0]])
    assert measure("mse", outputs, targets) == 0.5
    assert measure("mae", outputs, targets) == 0.5
    logits, labels = torch.tensor([[-1.0, 2.0]]), torch.tensor([[0.0, 0.0]])
    assert measure("accuracy", logits, labels) == 0.5


def test_a_function_sees_everything_at_once():
    def spread(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        assert len(outputs) == 4
        return outputs.max() - outputs.min()

    assert measure(spread) == 5.0
    assert metrics.name_of(spread) == "spread"


def test_wrong_choices_are_answered():
    with pytest.raises(ConfigError, match="Did you mean 'accuracy'"):
        metrics.check(["acuracy"])
    with pytest.raises(ConfigError, match="name or a function"):
        metrics.check([3])
    with pytest.raises(ConfigError, match="name 'mse' is taken"):
        metrics.check(["mse", "mse"])
    assert metrics.check("f1") == ("f1",)
