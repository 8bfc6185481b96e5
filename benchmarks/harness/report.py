"""What a person sees of a benchmark: tables on stdout, pictures under `benchmarks/results`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness.rounds import Spread

RESULTS = Path(__file__).parents[1] / "results"


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table whose first column names the row and whose others are figures."""
    table = Table()
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)  # a file has no width; don't fold tables at 80
    console.print(f"[bold]{title}[/bold]", table, sep="\n")


def with_spread(spread: Spread, form: str = ",.0f") -> str:
    """`median (low..high)`."""
    return f"{spread.median:{form}} ({spread.low:{form}}..{spread.high:{form}})"


@contextmanager
def picture(name: str, panels: int) -> Iterator[list[Any]]:
    """Panels to draw on, three in a row; saved as `results/NAME.png` when the block ends."""
    from matplotlib.figure import Figure

    columns, rows = min(panels, 3), -(-panels // 3)
    figure = Figure(figsize=(5.5 * columns, 4.5 * rows), layout="constrained")
    yield list(figure.subplots(rows, columns, squeeze=False).flat)
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(RESULTS / f"{name}.png", dpi=110)
    print(f"Picture: benchmarks/results/{name}.png")
