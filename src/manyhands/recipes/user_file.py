"""Running a user's recipe file as a module, and saying in one sentence what went wrong in it.

The file is a program of theirs and is run as one: its folder comes first among the places that
`import` looks in.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import cloudpickle

from manyhands.errors import ConfigError, ManyhandsError


def import_file(path: Path) -> ModuleType:
    """The module in this file, under a private name. `ConfigError` when it can't be imported."""
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "does not exist"
        raise ConfigError(f"The recipe file {path} {found}; expected the path of a .py file.")
    private_name = f"_manyhands_recipe_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(private_name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"The recipe file {path} does not end in .py; rename it.")
    module = importlib.util.module_from_spec(spec)
    _execute(spec.loader.exec_module, module)
    # Worker processes can't import the private name, so the file's classes travel by value.
    cloudpickle.register_pickle_by_value(module)
    return module


def failure(what: str, module: ModuleType, error: BaseException) -> ConfigError:
    """One sentence for an exception in a recipe: file, line, what happened."""
    file = str(module.__file__)
    if isinstance(error, SyntaxError) and error.filename:
        return ConfigError(f"{error.filename}, line {error.lineno}: {what}: {error.msg}.")
    frames = traceback.extract_tb(error.__traceback__)
    line = next((frame.lineno for frame in reversed(frames) if frame.filename == file), None)
    where = f"{file}, line {line}" if line else file
    return ConfigError(f"{where}: {what}: {type(error).__name__}: {error}".rstrip(". :") + ".")


def _execute(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    folder = str(Path(str(module.__file__)).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[module.__name__] = module
    try:
        execute(module)
    except BaseException as error:
        del sys.modules[module.__name__]
        if isinstance(error, ManyhandsError | KeyboardInterrupt):
            raise
        raise failure("the recipe can't be imported", module, error) from error
