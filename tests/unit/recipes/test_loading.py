"""Finding a recipe by name or by file, and the sentence for each way it can fail."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from manyhands.errors import ConfigError
from manyhands.recipes.loading import BUILT_IN, load_recipe

COMPLETE = '''"""A tiny net.

More about it.
"""
from dataclasses import dataclass
from torch import nn
import torch
from manyhands.optim import SGD
from manyhands.recipes import Recipe

@dataclass
class Settings:
    lr: float = 0.1

def build(settings):
    return Recipe(model=nn.Linear(2, 2), loss=nn.CrossEntropyLoss(), optimizer=SGD(lr=settings.lr),
                  train=(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)))
'''

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """Write a recipe file and give its path; what it changes in `sys` is undone."""
    path_before, modules_before = list(sys.path), set(sys.modules)

    def write_file(text: str) -> str:
        file = tmp_path / "my_recipe.py"
        file.write_text(text)
        return str(file)

    yield write_file
    sys.path[:] = path_before
    for name in set(sys.modules) - modules_before:
        if name.startswith("_manyhands_recipe_") or name == "sibling":
            del sys.modules[name]


def message(name: str) -> str:
    with pytest.raises(ConfigError) as raised:
        load_recipe(name)
    return str(raised.value)


def test_a_file_is_found_and_built(write: Write) -> None:
    path = write(COMPLETE)
    found = load_recipe(path)
    assert found.name == path
    assert found.description == "A tiny net."
    assert [setting.name for setting in found.settings] == ["lr"]
    assert found.build(found.apply({"lr": "0.5"})).optimizer.lr == 0.5


def test_a_relative_path_is_kept_absolute(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(COMPLETE)
    monkeypatch.chdir(Path(path).parent)
    assert load_recipe("my_recipe.py").name == path


def test_a_file_without_settings_builds_without_arguments(write: Write) -> None:
    text = COMPLETE.replace("@dataclass\nclass Settings:\n    lr: float = 0.1\n", "")
    text = text.replace("build(settings)", "build()").replace("settings.lr", "0.3")
    found = load_recipe(write(text))
    assert found.settings == []
    assert found.build(found.apply({})).optimizer.lr == 0.3
    with pytest.raises(ConfigError, match=r"No setting is called 'lr'\. The keys are: none"):
        found.apply({"lr": "1"})


def test_a_file_may_import_its_neighbour(write: Write) -> None:
    path = write("from sibling import build\n")
    Path(path).with_name("sibling.py").write_text(COMPLETE.replace("(settings)", "()"))
    assert load_recipe(path).settings == []


def test_unknown_name_is_answered_with_the_nearest() -> None:
    assert message("mnits") == (
        "No recipe is called 'mnits'. Did you mean 'mnist'? "
        "Built in: mnist, mnist_mlp, packages, synthetic-670k, extreme, amazon-670k, "
        "delicious-200k; or give the path of a .py file."
    )


def test_unknown_name_beside_a_file(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(write(COMPLETE)).parent)
    assert "There is a file my_recipe.py here; write my_recipe.py" in message("my_recipe")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert f"{tmp_path / 'no.py'} does not exist; expected" in message(str(tmp_path / "no.py"))
    assert f"{tmp_path} is a folder; expected" in message(str(tmp_path))


def test_a_file_that_is_not_python(tmp_path: Path) -> None:
    file = tmp_path / "recipe.txt"
    file.write_text("x")
    assert message(str(file)) == f"The recipe file {file} does not end in .py; rename it."


def test_syntax_error_names_file_and_line(write: Write) -> None:
    path = write("x = 1\ndef build(:\n")
    assert message(path).startswith(f"{path}, line 2: the recipe can't be imported: ")


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero."),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'."),
        ("raise SystemExit(3)", "SystemExit: 3."),
        ("raise ValueError", "ValueError."),
    ],
)
def test_exception_at_import_names_file_and_line(write: Write, line: str, cause: str) -> None:
    path = write(f"\n\n{line}\n")
    before = {name for name in sys.modules if name.startswith("_manyhands_recipe_")}
    assert message(path) == f"{path}, line 3: the recipe can't be imported: {cause}"
    after = {name for name in sys.modules if name.startswith("_manyhands_recipe_")}
    assert after == before


def test_exception_in_build_names_file_and_line(write: Write) -> None:
    path = write("def build():\n    return helper()\ndef helper():\n    return [][1]\n")
    found = load_recipe(path)
    with pytest.raises(ConfigError) as raised:
        found.build(found.apply({}))
    assert str(raised.value) == (
        f"{path}, line 4: build() failed: IndexError: list index out of range."
    )


def test_build_that_returns_something_else(write: Write) -> None:
    found = load_recipe(write("def build():\n    return 3\n"))
    with pytest.raises(ConfigError, match=r"returned int; expected a manyhands\.recipes\.Recipe"):
        found.build(found.apply({}))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no function build(settings); a recipe needs one."),
        ("build = 3", "has no function build(settings); a recipe needs one."),
        ("def build(settings): ...", "build() wants an argument but there is no Settings"),
        (
            "from dataclasses import dataclass\n@dataclass\nclass Settings: ...\ndef build(): ...",
            "build() must take one argument, the Settings.",
        ),
        ("class Settings: ...\ndef build(settings): ...", "Settings is not a dataclass"),
        (
            "from dataclasses import dataclass\n@dataclass\nclass Settings:\n    lr: float\n"
            "def build(settings): ...",
            "Settings.lr has no default",
        ),
    ],
)
def test_a_file_that_is_no_recipe(write: Write, text: str, sentence: str) -> None:
    path = write(text)
    answer = message(path)
    assert answer.startswith(path)
    assert sentence in answer


def test_the_built_in_names_are_the_recipe_files() -> None:
    assert BUILT_IN == (
        "mnist",
        "mnist_mlp",
        "packages",
        "synthetic-670k",
        "extreme",
        "amazon-670k",
        "delicious-200k",
    )


def test_dashes_and_underscores_are_one() -> None:
    assert load_recipe("synthetic_670k").name == "synthetic-670k"
    assert load_recipe("mnist-mlp").name == "mnist_mlp"
