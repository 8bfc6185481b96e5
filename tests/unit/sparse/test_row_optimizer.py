"""The optimizer of plain loops: torch's updates on touched rows, and decay that is made good."""

import copy

import pytest
import torch
from torch import nn

from manyhands import optim
from manyhands.errors import ConfigError, ModelError
from manyhands.sparse import RowOptimizer

RULES = [
    optim.SGD(lr=0.1),
    optim.Adagrad(lr=0.1, initial_accumulator=0.1),
    optim.Adam(lr=0.1),
    optim.AdamW(lr=0.1, weight_decay=0.0),
]


class Net(nn.Module):
    """A matrix and a line with sparse gradients, and a dense layer behind them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.matrix = nn.Embedding(8, 3, sparse=True)
        self.line = nn.Parameter(torch.randn(8))
        self.out = nn.Linear(3, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        line = torch.gather(self.line, 0, rows, sparse_grad=True)
        return (self.out(self.matrix(rows)).sum(1) + line).square().sum()


class Plain(nn.Module):
    """Rows whose gradient doesn't depend on them: late decay then changes nothing else."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.matrix = nn.Embedding(8, 3, sparse=True)
        self.line = nn.Parameter(torch.randn(8))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        factors = torch.arange(1.0, 1.0 + len(rows))
        line = torch.gather(self.line, 0, rows, sparse_grad=True)
        return (self.matrix(rows).sum(1) * factors).sum() + (line * factors).sum()


def steps(net: nn.Module, optimizer: torch.optim.Optimizer, batches, dense: bool = False) -> None:
    for rows in batches:
        optimizer.zero_grad()
        net(torch.tensor(rows)).backward()
        if dense:
            for parameter in net.parameters():
                parameter.grad = parameter.grad.to_dense()
        optimizer.step()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_rows_that_are_touched_every_time_move_as_with_torch(rule):
    ours, theirs = Net(), Net()
    batches = [[1, 5, 5]] * 4
    steps(ours, RowOptimizer(ours.parameters(), rule), batches)
    steps(theirs, rule.torch_optimizer(theirs.parameters()), batches, dense=True)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_rows_that_nobody_touches_stay_and_keep_their_state(rule):
    net = Net()
    before = copy.deepcopy(net.state_dict())
    optimizer = RowOptimizer(net.parameters(), rule)
    steps(net, optimizer, [[1, 5], [2]])
    for row in (0, 3, 4, 6, 7):
        assert torch.equal(net.matrix.weight[row], before["matrix.weight"][row])
        assert net.line[row] == before["line"][row]
    assert not torch.equal(net.matrix.weight[1], before["matrix.weight"][1])
    for name in rule.torch_states[: len(rule.states)]:
        state = optimizer.state[net.matrix.weight][name]
        assert (state[0] == state[0, 0]).all()
        assert state[0, 0] != state[1, 0]


def test_sgd_with_lazy_decay_is_sgd_with_decay_also_when_the_rate_changes():
    rule = optim.SGD(lr=0.1, weight_decay=0.3)
    ours, theirs = Plain(), Plain()
    optimizer = RowOptimizer(ours.parameters(), rule)
    peer = rule.torch_optimizer(theirs.parameters())
    for number, rows in enumerate([[1, 5], [2, 5], [2], [1, 2], [7]]):
        for one in (optimizer, peer):
            one.param_groups[0]["lr"] = 0.1 / (number + 1)
        steps(ours, optimizer, [rows])
        steps(theirs, peer, [rows], dense=True)
        torch.testing.assert_close(ours.matrix.weight[rows], theirs.matrix.weight[rows])
    assert not torch.allclose(ours.matrix.weight[0], theirs.matrix.weight[0])
    for _ in range(2):
        optimizer.catch_up()
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_decay_is_decoupled_on_rows_for_every_rule():
    net = Net()
    before = net.matrix.weight.detach().clone()
    optimizer = RowOptimizer(net.parameters(), optim.Adam(lr=0.1, weight_decay=0.5))
    steps(net, optimizer, [[1]] * 3)
    optimizer.catch_up()
    torch.testing.assert_close(net.matrix.weight[0], before[0] * 0.95**3)


def test_a_gradient_that_is_dense_for_once_lets_all_rows_catch_up():
    ours, theirs = Plain(), Plain()
    rule = optim.SGD(lr=0.1, weight_decay=0.3)
    optimizer = RowOptimizer(ours.parameters(), rule)
    peer = rule.torch_optimizer(theirs.parameters())
    steps(ours, optimizer, [[1], [2]])
    steps(ours, optimizer, [[3]], dense=True)
    steps(ours, optimizer, [[4]])
    optimizer.catch_up()
    steps(theirs, peer, [[1], [2], [3], [4]], dense=True)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_clipping_is_by_the_norm_of_all_gradients():
    ours, theirs = Net(), Net()
    rule = optim.SGD(lr=0.1, clip_norm=0.5)
    steps(ours, RowOptimizer(ours.parameters(), rule), [[1, 5, 5]])
    theirs(torch.tensor([1, 5, 5])).backward()
    for parameter in theirs.parameters():
        parameter.grad = parameter.grad.to_dense()
    nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
    torch.optim.SGD(theirs.parameters(), lr=0.1).step()
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("rule", [optim.Adam(lr=0.1, weight_decay=0.2), optim.SGD(lr=0.1)])
def test_it_goes_on_from_a_state_dict(rule):
    net = Net()
    optimizer = RowOptimizer(net.parameters(), rule)
    steps(net, optimizer, [[1, 5], [2]])
    saved, twin = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(net)
    again = RowOptimizer(twin.parameters(), rule)
    again.load_state_dict(saved)
    for one, its in ((net, optimizer), (twin, again)):
        steps(one, its, [[1], [5]])
        its.catch_up()
    torch.testing.assert_close(twin.state_dict(), net.state_dict())


def test_a_scheduler_and_a_closure():
    net = Net()
    optimizer = RowOptimizer(net.parameters(), optim.SGD(lr=1.0))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0)
    rows = torch.tensor([3])

    def closure():
        optimizer.zero_grad()
        loss = net(rows)
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0
    scheduler.step()
    before = copy.deepcopy(net.state_dict())
    optimizer.step(closure)
    torch.testing.assert_close(net.state_dict(), before)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_batch_that_touches_no_row_moves_none(rule):
    net = Plain()
    before = copy.deepcopy(net.state_dict())
    for parameter in net.parameters():
        nothing = torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0, *parameter.shape[1:])
        parameter.grad = torch.sparse_coo_tensor(*nothing, parameter.shape, check_invariants=True)
    RowOptimizer(net.parameters(), rule).step()
    torch.testing.assert_close(net.state_dict(), before)


def test_mistakes_are_named():
    net = Net()
    with pytest.raises(ConfigError, match="rule is 'adam'"):
        RowOptimizer(net.parameters(), "adam")
    with pytest.raises(ConfigError, match="Outer"):
        RowOptimizer(net.parameters(), optim.Outer())
    with pytest.raises(ModelError, match=r"sparse gradients and SGD.* momentum"):
        steps(net, RowOptimizer(net.parameters(), optim.SGD(lr=0.1, momentum=0.9)), [[1]])
    with pytest.raises(ModelError, match=r"torch\.float64"):
        RowOptimizer(Net().double().parameters(), optim.SGD(lr=0.1))
