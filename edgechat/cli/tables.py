"""Figures and tables: laid out for a person, tab-separated for a pipe."""

import sys
from collections.abc import Sequence

from edgechat.cli.output import one_line

UNITS = ("B", "kB", "MB", "GB", "TB")


def bytes_text(count: int) -> str:
    """A size as a person reads it: 98362432 is "98.4 MB"."""
    size = float(count)
    for unit in UNITS[:-1]:
        if size < 999.95 if unit != "B" else size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {UNITS[-1]}"


def count_text(count: int) -> str:
    """A number of weights as a person reads it: 134515008 is "135M"."""
    for limit, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= limit * 0.9995:
            share = count / limit
            return f"{share:.0f}{unit}" if share >= 99.95 else f"{share:.3g}{unit}"
    return str(count)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under heads; on a pipe, rows alone, their cells separated by tabs."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(row))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for head in heads:
        grid.add_column(head, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    Console().print(grid)


def pairs(rows: Sequence[tuple[str, str]]) -> None:
    """Print names and values, aligned; on a pipe, separated by tabs."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        gap = "\t" if not sys.stdout.isatty() else " " * (width - len(name) + 2)
        print(f"{one_line(name)}{gap}{one_line(value)}")
