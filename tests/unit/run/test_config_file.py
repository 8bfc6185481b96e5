"""run.toml: what goes in comes out, and a file cut anywhere is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from manyhands.errors import CheckpointError, ConfigError
from manyhands.run.config_file import read_config, write_config

CONFIG: dict[str, Any] = {
    "epochs": 20,
    "seed": 0,
    "optimizer": {"name": "sgd", "lr": 0.05, "nesterov": False},
    "recipe": {"name": 'a "quoted" name\nü', "settings": {"sizes": [1, 2.5], "parts": [{"a": 1}]}},
    "limit": math.inf,
}


def test_round_trip(tmp_path: Path) -> None:
    write_config(tmp_path / "run.toml", CONFIG)
    assert read_config(tmp_path / "run.toml") == CONFIG
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def test_none_is_left_out_and_paths_and_tuples_become_plain(tmp_path: Path) -> None:
    config = {"a": None, "b": {"c": None, "d": Path("/x/y")}, "e": (1, 2)}
    write_config(tmp_path / "run.toml", config)
    assert read_config(tmp_path / "run.toml") == {"b": {"d": "/x/y"}, "e": [1, 2]}


@pytest.mark.parametrize("config", [{}, CONFIG])
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    path = tmp_path / "run.toml"
    write_config(path, config)
    whole = path.read_bytes()
    for length in range(len(whole.rstrip())):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"run\.toml, line \d+: "):
            read_config(path)


def test_the_line_of_a_mistake_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("a = 1\nb = = 2\n")
    with pytest.raises(CheckpointError, match=r"run\.toml, line 2: this is not TOML"):
        read_config(path)
    path.write_bytes(b"a = 1\n\nb = '\xff'\n")
    with pytest.raises(CheckpointError, match=r"line 3: this is not UTF-8"):
        read_config(path)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"run\.toml can't be read: No such file"):
        read_config(tmp_path / "run.toml")


def test_values_without_a_toml_form_are_refused_by_their_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"recipe\.settings\.hook = .* is a object"):
        write_config(tmp_path / "run.toml", {"recipe": {"settings": {"hook": object()}}})
    with pytest.raises(ConfigError, match=r"sizes\[1\] = None"):
        write_config(tmp_path / "run.toml", {"sizes": [1, None]})
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_place_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be written"):
        write_config(tmp_path / "nowhere" / "run.toml", {})
