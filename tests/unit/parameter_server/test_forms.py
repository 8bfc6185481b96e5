"""The choice of a form: the cheapest that the parameter can take, and a sentence that says so."""

from __future__ import annotations

import pytest

from manyhands.errors import ConfigError
from manyhands.parameter_server.forms import (
    ENCODINGS,
    choose_form,
    delta_bytes,
    size,
)
from manyhands.parameter_server.shard_map import Form, ParameterSpec


def test_a_large_linear_layer_sends_factors():
    choice = choose_form("fc.weight", (4096, 4096), samples=32, is_linear=True, sparse=False)
    assert choice.form is Form.FACTORS
    assert choice.push_bytes == 32 * 8192 * 4
    assert choice.why == "fc.weight: factors, 1.05 MB a push instead of 67.1 MB"


def test_many_samples_make_the_gradient_smaller():
    choice = choose_form("fc.weight", (100, 100), samples=51, is_linear=True, sparse=False)
    assert choice.form is Form.DELTA
    assert choice.why == "fc.weight: delta, 40 KB a push; factors would be 40.8 KB"


@pytest.mark.parametrize("shape", [(64,), (64, 3, 5, 5)])
def test_what_is_no_matrix_of_a_linear_layer_sends_its_gradient(shape):
    choice = choose_form("p", shape, samples=1, is_linear=True, sparse=False)
    assert choice.form is Form.DELTA


def test_a_sparse_embedding_sends_rows():
    choice = choose_form("words", (50_000, 64), samples=500, is_linear=False, sparse=True)
    assert (choice.form, choice.push_bytes) == (Form.ROWS, 500 * 260)


def test_a_compressed_gradient_may_beat_factors():
    arguments = {"samples": 100, "is_linear": True, "sparse": False}
    assert choose_form("p", (1024, 1024), **arguments).form is Form.FACTORS
    choice = choose_form("p", (1024, 1024), **arguments, encoding="topk", keep=0.01)
    assert choice.form is Form.DELTA


def test_the_user_may_overrule():
    choice = choose_form("p", (4096, 4096), samples=1, is_linear=True, sparse=False, wanted="delta")
    assert (choice.form, choice.why) == (Form.DELTA, "p: delta, as asked for")


@pytest.mark.parametrize("wanted", ["factors", "rows"])
def test_an_impossible_wish_is_refused(wanted):
    with pytest.raises(ConfigError, match=f"'p' can't send its updates as {wanted}.*send delta"):
        choose_form("p", (64, 3), samples=1, is_linear=False, sparse=False, wanted=wanted)


def test_the_weight_of_each_encoding():
    assert [delta_bytes(1000, encoding, keep=0.01) for encoding in ENCODINGS] == [
        4000,
        2000,
        1016,
        80,
    ]
    with pytest.raises(ConfigError, match="encoding is 'float8'; expected one of float32"):
        delta_bytes(1, "float8")


def test_a_vector_has_rows_but_no_factors():
    spec = ParameterSpec("bias", (8,), Form.ROWS)
    assert (spec.rows, spec.row_floats) == (8, 1)
    with pytest.raises(ConfigError, match=r"'bias' has shape \(8,\).*use the form delta"):
        ParameterSpec("bias", (8,), Form.FACTORS)
    with pytest.raises(ConfigError, match="needs at least 1 dimensions"):
        ParameterSpec("scale", (), Form.ROWS)


def test_a_sparse_gradient_of_a_vector_travels_as_rows():
    choice = choose_form("bias", (1000,), samples=20, is_linear=False, sparse=True)
    assert (choice.form, choice.push_bytes) == (Form.ROWS, 20 * 8)


def test_sizes_read_well():
    assert [size(n) for n in (12, 999.7, 1500, 67_100_000, 3e9)] == [
        "12 bytes",
        "1 KB",
        "1.5 KB",
        "67.1 MB",
        "3 GB",
    ]
