"""Run several jobs at the same time, each in a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait


def run_concurrently(jobs: Sequence[Callable[[], None]], cancel: Callable[[], None]) -> None:
    """Run all jobs at the same time.

    Args:
        jobs: functions; one that is cancelled raises.
        cancel: ends the other jobs after one has raised, or after Ctrl-C.

    Raises:
        BaseException: the first that a job raised, or KeyboardInterrupt, after all jobs have ended.
    """
    with ThreadPoolExecutor(max(1, len(jobs))) as pool:
        running = [pool.submit(job) for job in jobs]
        try:
            ended, _ = wait(running, return_when=FIRST_EXCEPTION)
            for future in ended:
                future.result()
        except BaseException:
            cancel()
            raise
