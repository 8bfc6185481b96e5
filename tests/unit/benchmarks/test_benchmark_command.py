"""`python -m benchmarks`: finding by name, the nearest name, the JSON that ends the output."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
import types
from argparse import ArgumentParser, Namespace
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks.harness.report import print_table, with_spread
from benchmarks.harness.rounds import Spread, alternate

MACHINE = {"cores": 2}


def toy() -> Any:
    """A benchmark in two lines, with a table before its figures."""

    def add_options(parser: ArgumentParser) -> None:
        parser.add_argument("--rounds", type=int, default=2)

    def run(options: Namespace) -> dict[str, Any]:
        measured = alternate({"ours": lambda: 2.0, "peer": lambda: 1.0}, rounds=options.rounds)
        ratio = measured.ratio("ours", "peer")
        print_table("Toy", ["name", "ratio"], [["ours", with_spread(ratio, ".1f")]])
        return {"ratio": ratio.figures(), "rounds": options.rounds}

    module = types.ModuleType("benchmarks.toy", "A toy.")
    module.add_options, module.run = add_options, run  # type: ignore[attr-defined]
    return module


@pytest.fixture
def toy_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "names", lambda: ["toy"])
    monkeypatch.setattr(command, "machine", lambda: MACHINE)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setitem(sys.modules, "benchmarks.toy", toy())


@pytest.mark.usefixtures("toy_only")
def test_the_last_line_is_one_json_object_with_the_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main(["toy", "--quick", "--rounds", "3"]) == 0

    *table, last = capsys.readouterr().out.splitlines()
    assert any("2.0 (2.0..2.0)" in line for line in table)
    result = json.loads(last)
    assert result["benchmark"] == "toy"
    assert result["quick"] is True
    assert result["machine"] == MACHINE
    assert result["rounds"] == 3
    assert result["ratio"] == {"median": 2.0, "low": 2.0, "high": 2.0}


@pytest.mark.usefixtures("toy_only")
def test_an_interrupted_benchmark_prints_no_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(options: Namespace) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["benchmarks.toy"], "run", interrupted)

    assert command.main(["toy"]) == 130
    assert capsys.readouterr().out == ""


def test_an_unknown_name_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["trainer_nod"]) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert "'trainer_nod'" in captured.err
    assert "did you mean 'trainer_node'?" in captured.err


def test_no_name_lists_every_benchmark_with_its_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main([]) == 0

    listing = capsys.readouterr().out
    for name in command.names():
        assert f"  {name} " in listing
        assert command.sentence(name) in listing


def test_every_benchmark_says_what_it_measures() -> None:
    assert {"trainer_node", "update_kernels", "mnist_accuracy"} <= set(command.names())
    assert all(command.sentence(name).endswith(".") for name in command.names())


def test_a_spread_is_shown_with_its_extremes() -> None:
    assert with_spread(Spread(1234.4, 1000.0, 2000.0)) == "1,234 (1,000..2,000)"


@pytest.mark.parametrize("name", command.names())
def test_a_benchmark_reads_only_options_that_it_has(name: str) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    parser = ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    if hasattr(module, "add_options"):
        module.add_options(parser)
    read = {
        node.attr
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "options"
    }
    assert read <= vars(parser.parse_args([])).keys()
