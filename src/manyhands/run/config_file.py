"""A run's configuration as a TOML file: plain nested dicts in and out.

The last line marks the end. Without it a file cut in the middle of a number (`epochs = 20` to
`epochs = 2`) would still be valid TOML, and the run would silently go on with other settings.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from manyhands.errors import CheckpointError, ConfigError
from manyhands.run.durable import replaced_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HEADER = "# The configuration of the run: `manyhands resume` and `manyhands evaluate` read it.\n\n"
_END = "# end of the configuration (a file without this line was cut short)"


def write_config(path: Path | str, config: Mapping[str, Any]) -> None:
    """Write `config` to `path` atomically. Keys whose value is None are left out."""
    target = Path(path).absolute()
    text = f"{_HEADER}{tomli_w.dumps(_plain_table(config, ''))}\n{_END}\n"
    try:
        with replaced_file(target) as partial:
            partial.write_text(text, encoding="utf-8")
    except (OSError, UnicodeEncodeError) as error:
        raise ConfigError(f"The configuration can't be written to {target}: {error}.") from error


def read_config(path: Path | str) -> dict[str, Any]:
    """Read what `write_config` wrote; a file cut short or edited into nonsense is refused."""
    text = _read_text(Path(path))
    try:
        config = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _refusal(Path(path), _line_of(error, text), f"this is not TOML: {error}") from error
    if not text.rstrip().endswith(_END):
        raise _refusal(Path(path), _last_line(text), "the file was cut short here")
    return config


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror or error}.") from error
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _refusal(path, line, "this is not UTF-8 text") from error


def _refusal(path: Path, line: int, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{path}, line {line}: {problem}. Repair the file or name another run directory."
    )


def _line_of(error: tomllib.TOMLDecodeError, text: str) -> int:
    found = re.search(r"at line (\d+)", str(error))
    return int(found.group(1)) if found else _last_line(text)


def _last_line(text: str) -> int:
    return max(1, len(text.splitlines()))


def _plain_table(table: Mapping[str, Any], place: str) -> dict[str, Any]:
    return {
        str(key): _plain_value(value, f"{place}{key}")
        for key, value in table.items()
        if value is not None
    }


def _plain_value(value: Any, place: str) -> Any:
    if isinstance(value, Mapping):
        return _plain_table(value, f"{place}.")
    if isinstance(value, (list, tuple)):
        return [_plain_value(item, f"{place}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (str, bool, int, float)):
        return value
    raise ConfigError(
        f"{place} = {value!r} is a {type(value).__name__}, which a TOML file can't hold. "
        "Use text, a number, true or false, or lists and tables of these."
    )
