"""Drawing many figures: in processes of their own, where there are so many that starting those pays."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from bench.report.axes import Plot

Job = Callable[[], Plot | None]
"""Draws one figure, if there is anything to draw."""
MANY = 12
"""From so many figures on; each takes some tenths of a second, and a process about one second to start."""


def draw_all(jobs: Sequence[Job]) -> list[Plot | None]:
    """Draw figures, on all cores where there are many; return them in their order."""
    workers = min(_cores(), len(jobs) // (MANY // 2))
    if len(jobs) < MANY or workers < 2:
        return [job() for job in jobs]
    # Not by forking: the process may have threads, and its fork server holds torch, which drawing does without.
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            return list(pool.map(_draw, jobs, chunksize=2))
    except BrokenProcessPool:  # the main program is one that cannot be imported, or memory is short
        return [job() for job in jobs]


def _draw(job: Job) -> Plot | None:
    return job()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
