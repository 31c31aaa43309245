"""Draws the figures of a report in processes of their own, for that takes longer than all else of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from bench.report.figures.chart import Chart
from bench.spec import lifetime

DRAWERS = 2
"""Processes that draw figures."""


@contextmanager
def drawing(charts: Sequence[Chart], out: Path) -> Iterator[Callable[[], list[Chart]]]:
    """Draw charts into ``out`` while the body runs; yield the function that waits for them and returns them drawn.

    An error in the body, such as Ctrl-C, kills the processes.
    """
    # Forks are safe here: a process that reports has no other thread, as BLAS ends its own before a fork.
    with get_context("fork").Pool(DRAWERS, _begin, (os.getpid(),)) as pool:
        yield pool.map_async(partial(_draw, out), charts, chunksize=1).get


def _begin(parent: int) -> None:
    """Begin a process that draws: it ends when its parent does, and leaves Ctrl-C to that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    lifetime.end_with(parent)


def _draw(out: Path, chart: Chart) -> Chart:
    from bench.report.figures.draw import draw  # only here, for matplotlib takes half a second to import

    return draw(chart, out)
