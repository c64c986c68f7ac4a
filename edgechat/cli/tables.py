"""Tables: laid out for a person, tab-separated for a pipe."""

import sys
import textwrap
from collections.abc import Sequence

from edgechat.cli.output import one_line

GAP = 2
"""Cells between columns, the last of them the frame's."""
EDGES = 2
NAME_AND_VALUE = 2
LEAST = 14
"""Cells that the last column is left where others can go."""


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, spare: Sequence[str] = ()) -> None:
    """Print rows under heads; on a pipe, rows alone, their cells separated by tabs.

    On a terminal too narrow for that, each row is a paragraph, with a line for each of its cells.

    Args:
        heads: of the columns. The first is what is typed elsewhere, and never broken.
        rows: one cell for each head.
        spare: heads of columns that are left out on a narrow terminal, one after the other.
    """
    rows = [[one_line(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(row))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    shown, whole = fitting(heads, rows, spare, console.width - EDGES)
    if not whole:
        print("\n".join(paragraphs(heads, rows, console.width)))
        return
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, GAP - 1, 0, 0), header_style="bold")
    for column in shown:
        grid.add_column(heads[column], overflow="fold", no_wrap=column != shown[-1])
    for row in rows:
        grid.add_row(*(Text(row[column]) for column in shown))
    console.print(grid)


def fitting(
    heads: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str], width: int
) -> tuple[list[int], bool]:
    """The columns for a terminal of `width` cells, by number; and whether only the last need be broken."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    shown = list(range(len(heads)))
    for head in (*spare, None):
        *all_but_last, last = (widths[column] + GAP for column in shown)
        if sum(all_but_last) + min(last, LEAST) <= width:
            return shown, True
        if head is not None:
            shown.remove(heads.index(head))
    return shown, False


def paragraphs(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Lines of at most `width` cells, where words allow it: a row's first cell, and the others indented."""
    lines: list[str] = []
    for first, *others in rows:
        if len(heads) == NAME_AND_VALUE:
            lines += textwrap.wrap(f"{first}: {others[0]}", width, subsequent_indent="  ")
            continue
        lines += textwrap.wrap(first, width, break_long_words=False, break_on_hyphens=False)
        for head, cell in zip(heads[1:], others, strict=True):
            if cell:
                lines += textwrap.wrap(
                    f"{head}: {cell}" if head else cell,
                    width,
                    initial_indent="  ",
                    subsequent_indent="    ",
                    break_long_words=False,
                    break_on_hyphens=False,
                )
    return lines


def pairs(rows: Sequence[tuple[str, str]]) -> None:
    """Print names and values, aligned; on a pipe, separated by tabs."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        gap = "\t" if not sys.stdout.isatty() else " " * (width - len(name) + 2)
        print(f"{one_line(name)}{gap}{one_line(value)}")
