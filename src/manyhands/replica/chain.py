"""Reading an `nn.Module` as a chain of layers that the native kernels know.

The module is traced with torch.fx. Whatever is not a plain chain of known layers (branches, hooks,
layers without a kernel) raises `Unplannable` with the reason.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from manyhands.replica.straight_line import why_not_straight_line


class Unplannable(Exception):
    """The reason why a module has no native plan. Never leaves this room."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One link of the chain: a builder's name in `kernels.Plan`, its arguments, its module."""

    kind: str
    arguments: dict[str, Any]
    module: str = ""


def read_chain(model: nn.Module) -> list[Layer]:
    if any(has_hooks(module) for module in model.modules()):
        raise Unplannable("a module has hooks")
    tracer = fx.Tracer()
    for name, module in model.named_modules():
        if not name or not tracer.is_leaf_module(module, name):
            _refuse_unless_known(module)
    try:
        graph = tracer.trace(model)
    except Exception as error:  # tracing runs the user's forward, which may raise anything
        raise Unplannable(f"it can't be traced ({_first_line(error)})") from error
    modules = dict(model.named_modules())
    layers: list[Layer] = []
    last: fx.Node | None = None
    for node in graph.nodes:
        if node.op == "placeholder":
            if last is not None:
                raise Unplannable("more than one input")
            last = node
        elif node.op == "output":
            if node.args[0] is not last:
                raise Unplannable("the output is not the last layer's")
        elif not _is_batch_size(node):
            if node.all_input_nodes[:1] != [last] or _takes_other_tensors(node, last):
                raise Unplannable(f"it branches at '{node.name}'")
            layers.extend(_read_node(node, modules))
            last = node
    return layers


def _refuse_unless_known(module: nn.Module) -> None:
    if type(module) in (nn.Sequential, *_MODULES):
        return
    reason = why_not_straight_line(module)
    if reason is not None:
        raise Unplannable(reason)


def _is_batch_size(node: fx.Node) -> bool:
    """x.size(0), x.shape and x.shape[0] only feed a view: they are read there."""
    if node.op == "call_method" and node.target == "size":
        return True
    if node.op == "call_function" and node.target in (getattr, operator.getitem):
        source = node.args[0]
        return node.args[1] == "shape" or (isinstance(source, fx.Node) and _is_batch_size(source))
    return False


def _takes_other_tensors(node: fx.Node, last: fx.Node | None) -> bool:
    return any(source is not last and not _is_batch_size(source) for source in node.all_input_nodes)


def _read_node(node: fx.Node, modules: dict[str, nn.Module]) -> list[Layer]:
    if node.op == "call_module":
        name = str(node.target)
        module = modules[name]
        reader = _MODULES.get(type(module))
        if reader is None:
            raise Unplannable(f"no kernel for {type(module).__name__}")
        return reader(module, name)
    if node.op in ("call_function", "call_method"):
        reader_of_call = _CALLS.get(node.target)
        if reader_of_call is not None:
            return reader_of_call(node)
    raise Unplannable(f"no kernel for {name_of(node.target)}")


def _pair(value: Any) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else value
    if isinstance(pair, (tuple, list)) and [type(part) for part in pair] == [int, int]:
        return pair[0], pair[1]
    raise Unplannable("a geometry that is computed")


def _linear(module: nn.Module, name: str) -> list[Layer]:
    return [Layer("linear", {}, name)]


def _conv2d(module: nn.Module, name: str) -> list[Layer]:
    assert isinstance(module, nn.Conv2d)
    if module.groups != 1 or module.padding_mode != "zeros" or isinstance(module.padding, str):
        raise Unplannable("a convolution with groups, named padding or a padding mode")
    geometry = {
        "stride": _pair(module.stride),
        "padding": _pair(module.padding),
        "dilation": _pair(module.dilation),
    }
    return [Layer("conv2d", geometry, name)]


def _max_pool(module: nn.Module, name: str) -> list[Layer]:
    assert isinstance(module, nn.MaxPool2d)
    if module.ceil_mode or module.return_indices or _pair(module.dilation) != (1, 1):
        raise Unplannable("a max pooling with dilation, ceil_mode or indices")
    return [_pool("max_pool2d", module.kernel_size, module.stride, module.padding)]


def _avg_pool(module: nn.Module, name: str) -> list[Layer]:
    assert isinstance(module, nn.AvgPool2d)
    if module.ceil_mode or not module.count_include_pad or module.divisor_override is not None:
        raise Unplannable("an average pooling with ceil_mode or its own divisor")
    return [_pool("avg_pool2d", module.kernel_size, module.stride, module.padding)]


def _pool(kind: str, kernel: Any, stride: Any, padding: Any) -> Layer:
    geometry = {
        "kernel": _pair(kernel),
        "stride": _pair(kernel if stride is None or stride == [] else stride),
        "padding": _pair(padding),
    }
    return Layer(kind, geometry)


def _flatten(module: nn.Module, name: str) -> list[Layer]:
    assert isinstance(module, nn.Flatten)
    if (module.start_dim, module.end_dim) != (1, -1):
        raise Unplannable("a flatten of some dimensions only")
    return [Layer("flatten", {})]


def _dropout(module: nn.Module, name: str) -> list[Layer]:
    assert isinstance(module, nn.Dropout)
    if not module.training:
        return []
    return [Layer("dropout", {"p": float(module.p)})]


def _log_softmax(module: nn.Module, name: str) -> list[Layer]:
    assert isinstance(module, nn.LogSoftmax)
    if module.dim not in (1, -1):
        raise Unplannable("a log_softmax over another dimension")
    return [Layer("log_softmax", {})]


def _plain(kind: str) -> Callable[[nn.Module, str], list[Layer]]:
    return lambda module, name: [Layer(kind, {})]


_MODULES: dict[type[nn.Module], Callable[[nn.Module, str], list[Layer]]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.ReLU: _plain("relu"),
    nn.Tanh: _plain("tanh"),
    nn.Sigmoid: _plain("sigmoid"),
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _avg_pool,
    nn.Flatten: _flatten,
    nn.Dropout: _dropout,
    nn.LogSoftmax: _log_softmax,
    nn.Identity: lambda module, name: [],
}


def _plain_call(kind: str) -> Callable[[fx.Node], list[Layer]]:
    return lambda node: [Layer(kind, {})]


def _call_flatten(node: fx.Node) -> list[Layer]:
    start = node.args[1] if len(node.args) > 1 else node.kwargs.get("start_dim", 0)
    end = node.args[2] if len(node.args) > 2 else node.kwargs.get("end_dim", -1)
    if (start, end) != (1, -1):
        raise Unplannable("a flatten of some dimensions only")
    return [Layer("flatten", {})]


def _call_view(node: fx.Node) -> list[Layer]:
    shape = node.args[1] if len(node.args) == 2 else node.args[1:]
    if not isinstance(shape, (tuple, list)) or len(shape) != 2:
        raise Unplannable("a view that is not (batch, features)")
    # (-1, 320), (x.size(0), -1) or (x.size(0), 320); agrees_with_torch catches a wrong count.
    if shape[0] != -1 and not isinstance(shape[0], fx.Node):
        raise Unplannable("a view with a fixed batch size")
    return [Layer("flatten", {})]


def _call_max_pool(node: fx.Node) -> list[Layer]:
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    given = dict(zip(names, node.args[1:], strict=False)) | dict(node.kwargs)
    if given.get("dilation", 1) != 1 or given.get("ceil_mode") or given.get("return_indices"):
        raise Unplannable("a max pooling with dilation, ceil_mode or indices")
    return [_pool("max_pool2d", given["kernel_size"], given.get("stride"), given.get("padding", 0))]


def _call_dropout(node: fx.Node) -> list[Layer]:
    given = dict(zip(("p", "training", "inplace"), node.args[1:], strict=False)) | dict(node.kwargs)
    p, training = given.get("p", 0.5), given.get("training", True)
    if not isinstance(p, float) or not isinstance(training, bool):
        raise Unplannable("a dropout whose rate is computed")
    return [Layer("dropout", {"p": p})] if training else []


def _call_log_softmax(node: fx.Node) -> list[Layer]:
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if dim not in (1, -1) or node.kwargs.get("dtype") is not None:
        raise Unplannable("a log_softmax over another dimension")
    return [Layer("log_softmax", {})]


_CALLS: dict[Any, Callable[[fx.Node], list[Layer]]] = {
    F.relu: _plain_call("relu"),
    torch.relu: _plain_call("relu"),
    "relu": _plain_call("relu"),
    torch.tanh: _plain_call("tanh"),
    F.tanh: _plain_call("tanh"),
    "tanh": _plain_call("tanh"),
    torch.sigmoid: _plain_call("sigmoid"),
    F.sigmoid: _plain_call("sigmoid"),
    "sigmoid": _plain_call("sigmoid"),
    torch.flatten: _call_flatten,
    "flatten": _call_flatten,
    "view": _call_view,
    "reshape": _call_view,
    F.max_pool2d: _call_max_pool,
    torch.max_pool2d: _call_max_pool,
    F.dropout: _call_dropout,
    F.log_softmax: _call_log_softmax,
    torch.log_softmax: _call_log_softmax,
    "log_softmax": _call_log_softmax,
}


def has_hooks(module: nn.Module) -> bool:
    return any(
        getattr(module, name, None)
        for name in (
            "_forward_hooks",
            "_forward_pre_hooks",
            "_backward_hooks",
            "_backward_pre_hooks",
        )
    )


def name_of(value: object) -> str:
    return getattr(value, "__name__", type(value).__name__)


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0][:120] or type(error).__name__
