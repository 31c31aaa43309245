"""A table as a terminal shows it."""

from __future__ import annotations

import sys

from bench.report.tables.tables import Table

LOG_WIDTH = 200
"""Columns where output is no terminal: a log has no width of its own."""


def show(made: Table) -> None:
    """Print a table, its words to the left and its figures to the right."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=SIMPLE)
    for header, figures in zip(made.headers, made.figures, strict=True):
        grid.add_column(Text(header), justify="right" if figures else "left", overflow="fold")
    for row in made.rows:
        grid.add_row(*map(Text, row))
    width = None if sys.stdout.isatty() else LOG_WIDTH
    Console(highlight=False, width=width).print(grid)
