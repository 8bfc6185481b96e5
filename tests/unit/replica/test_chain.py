"""Which nets are read as a chain, and the reason given for those that are not."""

import random
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from manyhands.replica import plan
from manyhands.replica.chain import Unplannable, read_chain
from manyhands.replica.steps import LossStep


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.out = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(torch.relu(self.conv(x)), 2)
        x = F.dropout(x, 0.25, training=self.training)
        x = torch.flatten(x, 1)
        return F.log_softmax(self.out(x), dim=-1)


class Viewed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x.view(x.size(0), -1))


def test_modules_and_functions_are_read_alike():
    kinds = [layer.kind for layer in read_chain(Functional())]
    assert kinds == [
        "conv2d",
        "relu",
        "max_pool2d",
        "dropout",
        "flatten",
        "linear",
        "log_softmax",
    ]
    assert [layer.kind for layer in read_chain(Viewed())] == ["flatten", "linear"]
    nested = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Identity()), nn.Tanh())
    assert [layer.kind for layer in read_chain(nested)] == ["linear", "tanh"]


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layer(x)


class Gambles(Branches):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if random.random() < 0.5:
            return torch.relu(self.layer(x))
        return self.layer(x)


class Chooses(Branches):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x)) if self.training else self.layer(x)


class Counts(Branches):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = 1
        return self.layer(x)


class Prints(Branches):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("forward")
        return self.layer(x)


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_forward_hook(lambda module, inputs, output: output * 2)
    return model


def replaced() -> nn.Module:
    model = Branches()
    model.forward = lambda x: model.layer(x)  # type: ignore[method-assign]
    return model


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit is, and people have it
        return torch.jit.script(nn.Sequential(nn.Linear(4, 4)))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Branches(), "branches at 'add'|no kernel for add"),
        (Gambles(), "uses 'random'"),
        (Chooses(), "branches, loops or keeps state"),
        (Counts(), "keeps state"),
        (Prints(), "uses 'print'"),
        (hooked(), "hooks"),
        (replaced(), "replaced"),
        (scripted(), "ScriptModule.forward is"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "BatchNorm1d"),
        (nn.Sequential(nn.Conv2d(2, 2, 3, groups=2)), "groups"),
        (nn.Sequential(nn.Conv2d(2, 2, 3, padding="same")), "named padding"),
        (nn.Sequential(nn.MaxPool2d(2, ceil_mode=True)), "ceil_mode"),
        (nn.Sequential(nn.AvgPool2d(2, count_include_pad=False)), "divisor|ceil_mode"),
        (nn.Sequential(nn.Flatten(2)), "some dimensions"),
        (nn.Sequential(nn.Embedding(4, 4)), "Embedding"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_everything_else_is_refused_with_the_reason(model, words):
    with pytest.raises(Unplannable, match=words):
        read_chain(model)


BATCH = (torch.randn(3, 1, 8, 8), torch.tensor([0, 1, 2]))


@pytest.mark.parametrize(
    ("model", "loss", "batch", "words"),
    [
        (Viewed(), nn.MSELoss(), BATCH, "MSELoss"),
        (Viewed(), nn.CrossEntropyLoss(weight=torch.ones(3)), BATCH, "CrossEntropyLoss"),
        (Viewed(), nn.CrossEntropyLoss(reduction="sum"), BATCH, "CrossEntropyLoss"),
        (Functional(), nn.CrossEntropyLoss(), BATCH, "other than NLLLoss"),
        (Viewed(), F.cross_entropy, (BATCH[0], torch.randn(3, 3)), "class numbers"),
        (Viewed(), F.cross_entropy, (BATCH[0].double(), BATCH[1]), "float64"),
        (Viewed(), F.cross_entropy, (*BATCH, BATCH[1]), "not .inputs, targets"),
        (nn.Sequential(nn.Flatten()), F.cross_entropy, BATCH, "no layer with weights"),
    ],
)
def test_losses_and_batches_without_a_kernel(model, loss, batch, words):
    with pytest.raises(Unplannable, match=words):
        plan.describe(model, LossStep(loss), batch)


def test_a_step_of_the_users_own_and_shared_weights_are_left_to_autograd():
    with pytest.raises(Unplannable, match="user's own"):
        plan.describe(Viewed(), lambda model, batch: model(batch[0]).sum(), BATCH)
    tied = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 64))
    tied[2].weight = tied[1].weight
    with pytest.raises(Unplannable, match="share a weight"):
        plan.describe(tied, LossStep(F.cross_entropy), BATCH)


@pytest.mark.parametrize(
    ("model", "loss"), [(Functional(), F.nll_loss), (Viewed(), nn.CrossEntropyLoss())]
)
def test_what_is_described_agrees_with_torch(model, loss):
    description = plan.describe(model, LossStep(loss), BATCH)
    assert plan.agrees_with_torch(description, model, BATCH)
    assert model.training


def test_a_net_read_wrongly_is_noticed():
    model = Viewed()
    description = plan.describe(model, LossStep(F.cross_entropy), BATCH)
    with torch.no_grad():
        model.out.bias.fill_(-10)  # a ReLU behind it would let nothing through
    description_of_less = plan.PlanDescription(
        (*description.layers, description.layers[0]), (1, 8, 8), 0.0
    )
    assert plan.agrees_with_torch(description_of_less, model, BATCH)
    wrong = plan.PlanDescription(
        (*description.layers, plan.Layer("relu", {})), description.input_shape, 0.0
    )
    assert not plan.agrees_with_torch(wrong, model, BATCH)


class GlobalPool(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(F.max_pool2d(x, x.size()[2:]).flatten(1))


def test_a_geometry_that_is_computed_is_left_to_autograd():
    with pytest.raises(Unplannable, match="computed"):
        plan.describe(GlobalPool(), LossStep(F.cross_entropy), BATCH)


def test_a_loss_that_ignores_a_class_is_left_to_autograd():
    with pytest.raises(Unplannable, match="CrossEntropyLoss"):
        plan.describe(Viewed(), LossStep(nn.CrossEntropyLoss(ignore_index=0)), BATCH)


def test_layers_that_share_a_bias_are_left_to_autograd():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Linear(3, 3))
    model[2].bias = model[1].bias
    with pytest.raises(Unplannable, match="share a weight"):
        plan.describe(model, LossStep(F.cross_entropy), BATCH)


def test_dropout_kept_in_evaluation_mode_drops_nothing():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9))
    assert [layer.kind for layer in read_chain(model)] == ["linear", "dropout"]
    model[1].eval()
    assert [layer.kind for layer in read_chain(model)] == ["linear"]
