"""A table as a terminal shows it."""

from __future__ import annotations

import sys

from bench.report.tables.table import Table

LOG_WIDTH = 200
"""Characters in a line where the output is not a terminal."""


def show(made: Table) -> None:
    """Print a table."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=SIMPLE)
    for column in made.columns:
        grid.add_column(Text(column.header), justify=column.align, overflow="fold")
    for row in made.rows:
        grid.add_row(*map(Text, row))
    width = None if sys.stdout.isatty() else LOG_WIDTH
    Console(highlight=False, width=width).print(grid)
