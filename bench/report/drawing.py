"""Drawing many figures: in processes of their own, where there are so many that starting those pays."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass

from bench.report.axes import Plot

Job = Callable[[], Plot | None]
"""Draws one figure, if there is anything to draw."""
MANY = 5
"""From so many figures on; each takes some tenths of a second, and a process more than one second to start."""


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
def started(jobs: Sequence[Job]) -> Iterator[Drawing]:
    """Begin to draw figures, in other processes where there are many; this one is free for the tables."""
    workers = min(_cores(), len(jobs) // (MANY - 1))
    if len(jobs) < MANY or _cores() < 2:
        yield Drawing(jobs=jobs, begun=())
        return
    # Not by forking: the process may have threads, and its fork server holds torch, which drawing does without.
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield Drawing(jobs=jobs, begun=[pool.submit(_draw, job) for job in jobs])
    finally:
        pool.shutdown(cancel_futures=True)


def _draw(job: Job) -> Plot | None:
    return job()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
