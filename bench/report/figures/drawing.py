"""Drawing figures beside everything else, in processes of their own.

matplotlib takes half a second to import and about as long for a figure. The command line starts the processes before it
reads anything, so that they are ready when there is something to draw. They draw the figures of single recipes;
heatmaps, stairs, sweeps and numerics, which most reports lack, are drawn by the process that makes the tables.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.report.figures.axes import Plot

Job = Callable[[], "Plot | None"]
"""Draws one figure, if there is anything to draw."""
MANY = 5
"""From so many figures on a process that has matplotlib starts others all the same."""
READY = 2
"""Processes that are started before it is known how much there is to draw."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """Figures that other processes draw, or that wait to be drawn by this one."""

    jobs: Sequence[Job]
    begun: Sequence[Future[Plot | None]]
    """By other processes; none where this one draws all."""

    def plots(self) -> list[Plot | None]:
        """Return the figures in their order, when they are drawn."""
        if not self.begun:
            return [job() for job in self.jobs]
        try:
            return [figure.result() for figure in self.begun]
        except BrokenProcessPool:  # the main program is one that cannot be imported, or memory is short
            return [job() for job in self.jobs]


@contextmanager
def drawers() -> Iterator[Executor | None]:
    """Start processes that draw, and leave one core to whoever asks; None where this process draws by itself as fast.

    That is where it has matplotlib already, or one core. The main program must be one that can be imported.
    """
    most = _cores() - 1
    if most < 1 or "matplotlib" in sys.modules:
        yield None
        return
    with _pool(most) as pool:  # which starts a process for each job until it has so many
        with _deaf_to_interrupts(), suppress(BrokenProcessPool):  # whoever has figures for it will see
            for _ in range(min(READY, most)):
                pool.submit(_nothing)
        yield pool


@contextmanager
def started(jobs: Sequence[Job], pool: Executor | None = None) -> Iterator[Drawing]:
    """Begin to draw figures: in the processes of ``pool``, else here or, where there are many, in new processes.

    The pool takes no more after these: its processes end while this one goes on.
    """
    if pool is not None:
        try:
            yield _begin(jobs, pool)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    elif len(jobs) < MANY or _cores() < 2:
        yield Drawing(jobs=jobs, begun=())
    else:
        with _pool(min(_cores(), len(jobs) // (MANY - 1))) as own:
            yield _begin(jobs, own)


def _begin(jobs: Sequence[Job], pool: Executor) -> Drawing:
    try:
        with _deaf_to_interrupts():
            return Drawing(jobs=jobs, begun=[pool.submit(_draw, job) for job in jobs])
    except BrokenProcessPool:
        return Drawing(jobs=jobs, begun=())


@contextmanager
def _pool(count: int) -> Iterator[Executor]:
    # Not by forking: the process may have threads, and its fork server holds torch, which drawing does without.
    context = multiprocessing.get_context("spawn")
    watched, held = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(count, context, initializer=_prepare, initargs=(watched,))
    try:
        yield pool
        pool.shutdown(cancel_futures=True)
    finally:  # interrupted, perhaps while waiting for them
        held.close()
        pool.shutdown(wait=False, cancel_futures=True)
        watched.close()


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes started meanwhile never see Ctrl-C, which a terminal sends to all: they end with the one that asks."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare(watched: Connection) -> None:
    """Import what draws, in a process that ends as soon as the other end of a pipe is closed, by whatever end."""
    threading.Thread(target=_end_with, args=(watched,), daemon=True).start()
    for name in ("bench.report.figures.plots", "matplotlib.figure", "matplotlib.backends.backend_svg"):
        importlib.import_module(name)


def _end_with(watched: Connection) -> None:
    watched.poll(None)
    os._exit(1)


def _nothing() -> None:
    pass


def _draw(job: Job) -> Plot | None:
    return job()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
