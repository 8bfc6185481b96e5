"""A model's weights, buffers and optimizer state in shared memory (Adam, section 3.2.2).

One copy serves the driver and every worker; each of them reads and updates it without locks.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from manyhands.errors import ModelError
from manyhands.optim.rules import Rule
from manyhands.transport.arena import Arena

States = dict[str, list[torch.Tensor]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedWeights:
    """The shared tensors of a model, by the names of its parameters.

    `states` holds, for each trainable parameter, one tensor per state of the rule: once for all
    workers, or once for each of them where the rule keeps a state per worker. `averaged` holds the
    moving average of each trainable parameter, when the run keeps one. A tied parameter appears
    once, under its first name.
    """

    parameters: dict[str, torch.Tensor]
    states: tuple[States, ...]
    averaged: dict[str, torch.Tensor]

    def states_of(self, worker: int) -> States:
        """The states that a worker updates."""
        return self.states[worker % len(self.states)]

    def named_states(self, rule: Rule) -> dict[str, torch.Tensor]:
        """The state tensors by 'parameter.state', as a checkpoint names them; the mean where each
        worker has its own."""
        return {
            f"{name}.{state}": _mean([copy[name][at] for copy in self.states])
            for name in self.states[0]
            for at, state in enumerate(rule.states)
        }

    def load_states(self, rule: Rule, named: dict[str, torch.Tensor]) -> None:
        """Fill the states of every worker from a checkpoint's."""
        for copy in self.states:
            for name, tensors in copy.items():
                for state, tensor in zip(rule.states, tensors, strict=True):
                    tensor.copy_(named[f"{name}.{state}"])


def _mean(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Their mean; the tensor itself where there is one, since states may be gigabytes."""
    return tensors[0] if len(tensors) == 1 else torch.stack(tensors).mean(0)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training moves, each once, under its first name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def refuse_lazy(model: nn.Module) -> None:
    """Raise ModelError for parameters that have no shape yet."""
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ModelError(
                f"Parameter '{name}' has no shape yet (a lazy module): run one batch through the "
                "model before training."
            )


def refuse_what_cannot_be_shared(model: nn.Module) -> None:
    """Raise ModelError for weights that lock-free workers can't train, saying what to change."""
    refuse_lazy(model)
    storages: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise ModelError(
                f"Parameter '{name}' is {parameter.dtype}; lock-free workers train torch.float32: "
                "call model.float() or use Synchronous(workers=1)."
            )
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise ModelError(
                f"Parameter '{name}' has a gradient hook, which worker processes would not see: "
                "remove it, or use Synchronous(workers=1)."
            )
        if parameter.device.type != "cpu":
            raise ModelError(
                f"Parameter '{name}' is on {parameter.device}; Manyhands trains on CPUs: "
                "call model.cpu()."
            )
        other = storages.setdefault(parameter.untyped_storage().data_ptr(), name)
        if other != name and parameter.numel():
            raise ModelError(
                f"Parameters '{other}' and '{name}' share memory but are two objects: tie weights "
                "by assigning the parameter itself (module_b.weight = module_a.weight)."
            )
    if not trainable(model):
        raise ModelError("The model has no trainable parameter: nothing requires a gradient.")


def share(
    model: nn.Module,
    rule: Rule,
    *,
    workers: int = 1,
    averaging: bool,
    channels_last: bool = False,
    by_rows: Collection[str] = (),
) -> tuple[Arena, SharedWeights]:
    """Move the model into shared memory, in place, with fresh optimizer state beside it.

    `by_rows` names matrices of which training visits single rows: a row and its states lie side by
    side. They have one set of states, whatever the rule.
    """
    parameters = dict(model.named_parameters())
    buffers = [buffer for _, buffer in model.named_buffers()]
    moved = [p for p in parameters.values() if p.requires_grad]
    state_copies = workers if rule.state_per_worker else 1
    tensors_beside = len(rule.states) * state_copies + (1 if averaging else 0)
    arena = Arena.with_room_for([*parameters.values(), *buffers, *(moved * tensors_beside)])
    rows = {name: _placed_by_rows(parameters[name], rule, arena) for name in by_rows}
    for name, parameter in parameters.items():
        if name in by_rows:
            continue
        source = parameter.detach()
        if channels_last and source.dim() == 4:
            source = source.contiguous(memory_format=torch.channels_last)
        parameter.data = arena.place(source)
    for buffer in buffers:
        buffer.data = arena.place(buffer)
    states = tuple(_fresh_states(parameters, rule, arena, rows) for _ in range(state_copies))
    averaged = {
        n: arena.place(p.data) for n, p in parameters.items() if p.requires_grad and averaging
    }
    return arena, SharedWeights(
        parameters={n: p.data for n, p in parameters.items() if p.requires_grad},
        states=states,
        averaged=averaged,
    )


def _placed_by_rows(parameter: nn.Parameter, rule: Rule, arena: Arena) -> list[torch.Tensor]:
    """Move a matrix into the arena with its states beside each row; the states."""
    starts = [torch.tensor(rule.state_start(s)).expand(parameter.shape) for s in rule.states]
    parameter.data, *states = arena.place_rows([parameter.detach(), *starts])
    return states


def _fresh_states(
    parameters: dict[str, nn.Parameter], rule: Rule, arena: Arena, placed: States
) -> States:
    return {
        name: placed.get(name)
        or [arena.place(torch.full_like(p.data, rule.state_start(s))) for s in rule.states]
        for name, p in parameters.items()
        if p.requires_grad
    }


def unshare(model: nn.Module) -> None:
    """Move the model back into ordinary memory, in place: the model outlives the run."""
    for parameter in model.parameters():
        parameter.data = parameter.detach().contiguous().clone()
        parameter.grad = None
    for buffer in model.buffers():
        buffer.data = buffer.detach().clone()
