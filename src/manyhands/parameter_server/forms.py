"""The form of a parameter's updates, chosen by bytes: delta, factors or rows.

Adam, section 3.2.6: a fully connected layer's weight gradient is the product of its errors and its
activations, and those are smaller while few samples are summed up. Pure: a shape and a count go in,
a choice and the sentence that explains it come out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from manyhands.errors import ConfigError
from manyhands.parameter_server.shard_map import Form

ENCODINGS = ("float32", "bfloat16", "int8", "topk")
_INT8_BLOCK = 256  # values that share a scale of four bytes
_ROW_NUMBER_BYTES = 4


@dataclass(frozen=True, slots=True)
class FormChoice:
    """The form of one parameter's updates, what a push of it weighs, and why it was chosen."""

    form: Form
    push_bytes: int
    why: str


def delta_bytes(floats: int, encoding: str = "float32", keep: float = 0.01) -> int:
    """What a dense update of so many floats weighs; `keep` is the share that top-k sends."""
    if encoding == "float32":
        return 4 * floats
    if encoding == "bfloat16":
        return 2 * floats
    if encoding == "int8":
        return floats + 4 * -(-floats // _INT8_BLOCK)
    if encoding == "topk":
        return 8 * min(floats, max(1, math.ceil(floats * keep)))
    raise ConfigError(f"encoding is {encoding!r}; expected one of {', '.join(ENCODINGS)}.")


def factor_bytes(rows: int, columns: int, samples: int, encoding: str = "float32") -> int:
    """What the activations and errors of so many samples weigh."""
    return samples * (rows + columns) * (4 if encoding == "float32" else 2)


def row_bytes(row_floats: int, touched: int) -> int:
    """What so many rows with their numbers weigh."""
    return touched * (4 * row_floats + _ROW_NUMBER_BYTES)


def choose_form(
    name: str,
    shape: Sequence[int],
    *,
    samples: int,
    is_linear: bool,
    sparse: bool,
    encoding: str = "float32",
    keep: float = 0.01,
    wanted: Form | str | None = None,
) -> FormChoice:
    """The cheapest form for a parameter, or the one wanted, when the parameter can take it.

    `samples` are those summed up in one push: of a linear layer's batches, or the rows that they
    touch in a sparse embedding. `is_linear` says that the parameter is a weight of linear layers
    alone. `encoding` is that of dense updates; factors are sent as bfloat16
    unless it is float32.
    """
    weights = _weights_of(tuple(shape), samples, is_linear, sparse, encoding, keep)
    if wanted is not None:
        form = _possible(name, Form(wanted), weights)
        return FormChoice(form, weights[form], f"{name}: {form.value}, as asked for")
    form = min(weights, key=lambda form: weights[form])
    if sparse and Form.ROWS in weights:
        form = Form.ROWS  # a sparse gradient made dense would cost memory as well
    return FormChoice(form, weights[form], f"{name}: {form.value}, {_reason(form, weights)}")


def _weights_of(
    shape: tuple[int, ...],
    samples: int,
    is_linear: bool,
    sparse: bool,
    encoding: str,
    keep: float,
) -> dict[Form, int]:
    """The bytes of a push in each form that the parameter can take."""
    floats = math.prod(shape)
    weights = {Form.DELTA: delta_bytes(floats, encoding, keep)}
    if is_linear and len(shape) == 2:
        weights[Form.FACTORS] = factor_bytes(shape[0], shape[1], samples, encoding)
    if sparse and shape:
        weights[Form.ROWS] = row_bytes(math.prod(shape[1:]), min(samples, shape[0]))
    return weights


def _possible(name: str, wanted: Form, weights: dict[Form, int]) -> Form:
    if wanted not in weights:
        needs = "a linear layer" if wanted is Form.FACTORS else "sparse gradients"
        raise ConfigError(
            f"Parameter '{name}' can't send its updates as {wanted.value}, which needs {needs}; "
            f"it can send {' or '.join(form.value for form in weights)}."
        )
    return wanted


def _reason(form: Form, weights: dict[Form, int]) -> str:
    if len(weights) == 1:
        return f"{size(weights[form])} a push"
    if form is Form.DELTA:
        other = next(other for other in weights if other is not form)
        return f"{size(weights[form])} a push; {other.value} would be {size(weights[other])}"
    return f"{size(weights[form])} a push instead of {size(weights[Form.DELTA])}"


def size(size_bytes: float) -> str:
    """A number of bytes as a person reads it."""
    for unit in ("bytes", "KB", "MB"):
        if size_bytes < 999.5:
            return f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.3g} GB"
