"""Is a `forward` the same every time it runs? Asked before a trace of it is trusted.

A trace shows one execution. A forward that branches on a random number, counts its calls or prints
would be trained as something else, without a word; so only straight-line code over PyTorch
functions is read from a trace, and everything else is left to autograd.
"""

from __future__ import annotations

import dis
import inspect
import types

from torch import nn

_STORES = ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF", "DELETE_ATTR", "STORE_SUBSCR")
_REFUSED = (*_STORES, "IMPORT_NAME", "MAKE_FUNCTION", "YIELD_VALUE", "FOR_ITER", "SETUP_FINALLY")


def why_not_straight_line(module: nn.Module) -> str | None:
    """The reason why a module's own forward can't be read from one trace, or None."""
    forward = inspect.getattr_static(type(module), "forward", None)  # torch.jit computes it
    name = type(module).__name__
    if "forward" in vars(module) or type(module).__call__ is not nn.Module.__call__:
        return f"{name}.forward is replaced"
    if not isinstance(forward, types.FunctionType) or hasattr(forward, "__wrapped__"):
        return f"{name}.forward is not a plain function"
    for instruction in dis.get_instructions(forward.__code__):
        if "JUMP" in instruction.opname or instruction.opname in _REFUSED:
            return f"{name}.forward branches, loops or keeps state"
        if instruction.opname == "LOAD_GLOBAL" and not _is_torch(forward, instruction.argval):
            return f"{name}.forward uses '{instruction.argval}'"
        if instruction.opname == "LOAD_DEREF":
            return f"{name}.forward uses '{instruction.argval}' from around it"
    return None


def _is_torch(forward: types.FunctionType, name: str) -> bool:
    value = forward.__globals__.get(name)
    home = (
        value.__name__
        if isinstance(value, types.ModuleType)
        else getattr(value, "__module__", None)
    )
    return isinstance(home, str) and (home == "torch" or home.startswith("torch."))
