"""The command `python -m benchmarks NAME`: finds it, runs it and ends with one line of JSON."""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import json
import pkgutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.machine import machine

FOLDER = Path(__file__).parent


def names(folder: Path = FOLDER) -> list[str]:
    """Every benchmark there is: the modules of the folder, without the packages they share."""
    found = pkgutil.iter_modules([str(folder)])
    return sorted(m.name for m in found if not m.ispkg and not m.name.startswith("_"))


def sentence(name: str, folder: Path = FOLDER) -> str:
    """A benchmark's first line, read without importing it."""
    text = ast.get_docstring(ast.parse((folder / f"{name}.py").read_text())) or ""
    return text.partition("\n")[0]


def listing() -> str:
    width = max(map(len, names()))
    lines = [f"  {name:<{width}}  {sentence(name)}" for name in names()]
    return "\n".join(["usage: make bench NAME=name [QUICK=1]", "", *lines])


def unknown(name: str) -> str:
    near = difflib.get_close_matches(name, names(), n=1, cutoff=0.0)[0]
    return (
        f"There is no benchmark named {name!r}; did you mean {near!r}? "
        f"Known ones: {', '.join(names())}."
    )


def execute(name: str, module: Any, arguments: Sequence[str]) -> dict[str, Any]:
    """One benchmark's figures, with the machine they were taken on."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}", description=module.__doc__
    )
    parser.add_argument("--quick", action="store_true", help="fewer points; within a minute")
    if hasattr(module, "add_options"):
        module.add_options(parser)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    figures = module.run(options)
    return {
        "benchmark": name,
        "quick": options.quick,
        "machine": machine(),
        "seconds": round(time.monotonic() - began, 1),
        **figures,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(listing())
        return 0
    name, *rest = arguments
    if name not in names():
        print(unknown(name), file=sys.stderr)
        return 2
    # A terminated benchmark unwinds like an interrupted one, so that its processes end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        result = execute(name, importlib.import_module(f"benchmarks.{name}"), rest)
    except KeyboardInterrupt:
        print("Interrupted: no figures.", file=sys.stderr)
        return 130
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
