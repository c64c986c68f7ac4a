"""Tables: laid out for a person, tab-separated for a pipe."""

import sys
from collections.abc import Sequence

from edgechat.cli.output import one_line


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
