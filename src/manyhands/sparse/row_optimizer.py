"""RowOptimizer: mh.optim's rules for a plain PyTorch loop, on the rows that a batch touched.

`torch.optim.Adam` refuses sparse gradients, and a dense one would walk over every row of a layer of
a million neurons at each step. This one moves the rows that have a gradient and no others. The
decay that a row misses while nobody touches it is made good when somebody does (lazy decay):

    step            1        2        3        4
    row 7           touched                    touched
    its weights     decay,   wait     wait     decay three times at once,
                    move                       move
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from manyhands import kernels
from manyhands.errors import ConfigError, ModelError
from manyhands.optim.clipping import clipping
from manyhands.optim.native import native_rule
from manyhands.optim.row_gradients import in_order, in_rows
from manyhands.optim.rules import Outer, Rule


class RowOptimizer(torch.optim.Optimizer):
    """A rule of `mh.optim` as an optimizer of PyTorch, for sparse and dense gradients.

    Parameters with dense gradients take the rule as it is, clipping included. In sparse ones the
    rule's states (Adagrad's sums, Adam's moments) move in the touched rows alone, and weight decay
    shrinks the weight itself, as in AdamW: by `1 - lr * weight_decay` for every step since the
    row's last. For SGD that is the same as decay in the gradient. `catch_up` applies what is
    outstanding, so call it before you evaluate or save a model that decays; `state_dict` does.
    Momentum is refused for sparse gradients. Schedulers of PyTorch may change the rate
    (`param_groups[i]["lr"]`).
    """

    def __init__(self, params: Any, rule: Rule) -> None:
        if not isinstance(rule, Rule) or isinstance(rule, Outer):
            raise ConfigError(
                f"RowOptimizer: rule is {rule!r:.80}; expected one of mh.optim for gradients, such "
                "as Adam(lr=0.003)."
            )
        super().__init__(params, {"lr": rule.lr})
        self.rule = rule
        self._native = native_rule(rule)
        # Rows decay by themselves, before the rule; AdamW's decay is what makes it another rule.
        self._native_on_rows = native_rule(replace(rule, weight_decay=0.0))
        for parameter in self._parameters():
            if parameter.dtype != torch.float32 or not parameter.is_contiguous():
                raise ModelError(
                    f"RowOptimizer: a parameter is {parameter.dtype} with strides "
                    f"{tuple(parameter.stride())}; expected torch.float32 in contiguous memory."
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every parameter that has a gradient; the closure's loss if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        gradients = {p: in_order(p.grad) for p in self._parameters() if p.grad is not None}
        values = [g._values() if g.is_sparse else g.contiguous() for g in gradients.values()]
        scale = clipping(self.rule, values)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter in gradients:
                    self._move(parameter, gradients[parameter], float(group["lr"]), scale)
        return loss

    @torch.no_grad()
    def catch_up(self) -> None:
        """Apply the decay that rows have missed, in every row."""
        for parameter in self._parameters():
            state = self.state.get(parameter, {})
            if "decayed" in state:
                keep = (state["decay"] - state["decayed"]).exp().float()
                parameter.data.mul_(keep.view(-1, *[1] * (parameter.dim() - 1)))
                state["decayed"].fill_(state["decay"])

    def state_dict(self) -> dict[str, Any]:
        """As of any optimizer of PyTorch, after `catch_up`."""
        self.catch_up()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As of any optimizer of PyTorch. The weights that belong to it have caught up."""
        super().load_state_dict(state_dict)
        for state in self.state.values():
            if "decayed" in state:
                state["decayed"] = torch.full(
                    state["decayed"].shape, state["decay"], dtype=torch.float64
                )

    def _parameters(self) -> Iterable[torch.nn.Parameter]:
        return (parameter for group in self.param_groups for parameter in group["params"])

    def _move(
        self, parameter: torch.nn.Parameter, gradient: torch.Tensor, lr: float, scale: float
    ) -> None:
        state = self._state(parameter)
        state["step"] += 1
        step = int(state["step"])
        states = [state[name] for name in self.rule.torch_states[: len(self.rule.states)]]
        if gradient.is_sparse:
            self._move_rows(parameter, gradient, lr, step, scale, states)
            return
        if "decayed" in state:  # its gradient was sparse before: all rows are touched now
            self.catch_up()
        dense = gradient.contiguous()
        kernels.update(self._native, lr, step, scale, [parameter.data], [dense], [states])

    def _move_rows(
        self,
        parameter: torch.nn.Parameter,
        gradient: torch.Tensor,
        lr: float,
        step: int,
        scale: float,
        states: list[torch.Tensor],
    ) -> None:
        refusal = replace(self.rule, weight_decay=0.0).sparse_refusal()
        if refusal is not None:
            raise ModelError(
                f"A parameter has sparse gradients and {type(self.rule).__name__} can't follow "
                f"them: {refusal}. Use a rule without it."
            )
        rows = gradient._indices()[0].contiguous()
        kernels.update_rows(
            self._native_on_rows,
            lr,
            step,
            scale,
            in_rows(parameter.data),
            rows,
            in_rows(gradient._values().contiguous()),
            [in_rows(state) for state in states],
            self._shares_kept(parameter, rows, lr),
        )

    def _shares_kept(
        self, parameter: torch.nn.Parameter, rows: torch.Tensor, lr: float
    ) -> torch.Tensor | None:
        """What decay leaves of each row's weights, for all steps since the row was touched."""
        if not self.rule.weight_decay:
            return None
        state = self.state[parameter]
        if "decayed" not in state:
            state["decay"] = 0.0
            state["decayed"] = torch.zeros(len(parameter), dtype=torch.float64)
        # Rates change from step to step, so the logarithms of the shares are summed.
        state["decay"] += math.log(max(1e-30, 1 - lr * self.rule.weight_decay))
        decayed: torch.Tensor = state["decayed"]
        keep = torch.exp(state["decay"] - decayed[rows]).float()
        decayed[rows] = state["decay"]
        return keep

    def _state(self, parameter: torch.nn.Parameter) -> dict[str, Any]:
        """The rule's states under the names that torch.optim has for them."""
        state: dict[str, Any] = self.state[parameter]
        if "step" not in state:
            state["step"] = torch.tensor(0.0)
        for ours, theirs in zip(self.rule.states, self.rule.torch_states, strict=False):
            if theirs not in state:
                state[theirs] = torch.full_like(parameter, self.rule.state_start(ours))
        return state
