"""The choice of a form under hypothesis: no form that the parameter can take is cheaper."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.errors import ConfigError
from manyhands.parameter_server.forms import ENCODINGS, choose_form, delta_bytes, factor_bytes
from manyhands.parameter_server.shard_map import Form, ParameterSpec

SHAPES = st.lists(st.integers(1, 3000), max_size=4).map(tuple)
ENCODED = st.sampled_from(ENCODINGS)


@given(SHAPES, st.integers(1, 5000), st.booleans(), ENCODED, st.floats(0.001, 1.0))
def test_nothing_cheaper_is_left_out(
    shape: tuple[int, ...], samples: int, is_linear: bool, encoding: str, keep: float
) -> None:
    choice = choose_form(
        "p",
        shape,
        samples=samples,
        is_linear=is_linear,
        sparse=False,
        encoding=encoding,
        keep=keep,
    )
    prices = {Form.DELTA: delta_bytes(math.prod(shape), encoding, keep)}
    if is_linear and len(shape) == 2:
        prices[Form.FACTORS] = factor_bytes(*shape, samples, encoding)
    assert choice.push_bytes == prices[choice.form] == min(prices.values())
    assert choice.form.value in choice.why
    ParameterSpec("p", shape, choice.form)  # a map can be made with it


@given(SHAPES, st.integers(1, 5000), st.booleans(), st.booleans(), st.sampled_from(Form))
def test_a_wish_is_granted_or_refused(
    shape: tuple[int, ...], samples: int, is_linear: bool, sparse: bool, wanted: Form
) -> None:
    arguments = {"samples": samples, "is_linear": is_linear, "sparse": sparse, "wanted": wanted}
    possible = {
        Form.DELTA: True,
        Form.FACTORS: is_linear and len(shape) == 2,
        Form.ROWS: sparse and len(shape) >= 1,
    }
    if possible[wanted]:
        assert choose_form("p", shape, **arguments).form is wanted
    else:
        with pytest.raises(ConfigError, match="can't send its updates"):
            choose_form("p", shape, **arguments)


@given(st.integers(0, 10_000_000), st.floats(0.001, 1.0))
def test_compression_never_costs_more_than_twice_the_floats(floats: int, keep: float) -> None:
    plain = delta_bytes(floats)
    assert delta_bytes(floats, "bfloat16") * 2 == plain
    assert delta_bytes(floats, "int8") <= plain / 4 + plain / 256 + 4
    assert delta_bytes(floats, "topk", keep) <= 2 * plain
