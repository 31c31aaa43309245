"""The interface between a run and what runs its trials.

That is this machine, or what an optional folder adds.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from bench.results.endings import Ending
from bench.results.records import Device, Environment, Message
from bench.spec.errors import UsageError
from bench.spec.optional import definitions
from bench.spec.request import Request
from bench.spec.trial import Trial

# Takes the records of a trial as they come.
OnMessage = Callable[[Message], None]
# How often a thread that waits for others looks whether Ctrl-C was pressed.
WAKE_S = 0.5
# A process that surveys, downloads or decodes before the run is taken to hang if it is silent for
# so long.
SILENCE_S = 1800.0


class Launcher(ABC):
    """Runs functions of the worker, each in a fresh process, on this machine or elsewhere."""

    overlapping = False
    """Whether trials of different placements run at the same time."""

    def __init__(self) -> None:
        """Start without notes and checkpoints."""
        self.workspace: Path | None = None
        """Folder in which training keeps its checkpoints; None keeps none."""
        self.notes: list[str] = []
        """Sentences on what happened to nodes and trials, for the run's warnings."""

    @abstractmethod
    def survey(self, gpus: tuple[str, ...] | None) -> Environment:
        """Describe the machine, or the cluster's nodes as one, and the devices that were named.

        Raises:
            UsageError: a device is not there.
        """

    def prepare_script(self, _request: Request) -> Any:
        """Return the ``PreparedRun`` of a training script, which its launcher plans, or None."""
        return None

    @abstractmethod
    def call(self, target: str, *arguments: object, silence_s: float = SILENCE_S) -> Any:
        """Call a function of the worker, in a fresh process on each node, and return its value.

        Args:
            target: the function as ``module:name``.
            arguments: of the function.
            silence_s: how long its process may say nothing before it is taken to hang.

        Raises:
            UsageError: the function raised one, its process failed, died or hung, or nodes return
                different values.
        """

    @abstractmethod
    def run(self, trial: Trial, device: Device, on_message: OnMessage) -> Ending:
        """Run one trial and pass its records on."""

    def cancel(self) -> None:  # noqa: B027
        """End the processes that run in other threads, and release what a cluster has lent."""

    def close(self) -> None:  # noqa: B027
        """Release what was held."""


def run_concurrently(jobs: Sequence[Callable[[], object]], cancel: Callable[[], None]) -> None:
    """Run all jobs at the same time.

    After one has raised, or after Ctrl-C, ``cancel`` ends the others, which then raise.

    Raises:
        BaseException: the first that a job raised, or KeyboardInterrupt, after all jobs have ended.
    """
    with ThreadPoolExecutor(max(1, len(jobs))) as pool:
        try:
            pending = {pool.submit(job) for job in jobs}
            while pending:
                # Python raises KeyboardInterrupt in this thread only when it runs, whichever thread
                # took the signal.
                ended, pending = wait(pending, WAKE_S, FIRST_COMPLETED)
                for job in ended:
                    job.result()
        except BaseException:
            cancel()
            raise


def open_launcher(request: Request) -> Launcher:
    """Return the launcher of this machine, or that of an optional folder.

    The function of this name in such a folder's launcher.py returns None of a request that is not
    for it.

    Raises:
        UsageError: torchrun or srun started several tasks, the folder is missing, or its launcher
            cannot be opened.
    """
    for open_optional in definitions("launcher", "open_launcher"):
        launcher: Launcher | None = open_optional(request)
        if launcher is not None:
            return launcher
    if request.on is not None or request.script is not None:
        raise UsageError(
            f"There is no launcher for {request.on or 'scripts'}; --on ray is one "
            "(docs/clusters.md)."
        )
    from bench.launch.local import LocalLauncher

    require_one_task()
    return LocalLauncher()


def require_one_task() -> None:
    """Refuse to measure on this machine as one of several tasks, which would disturb each other.

    Raises:
        UsageError: torchrun or srun started several tasks.
    """
    torchrun = ("torchrun", "RANK", "WORLD_SIZE")
    # SLURM_NTASKS is set in a batch script, too.
    srun = ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    for starter, rank, count in (torchrun, srun):
        tasks = os.environ.get(count, "1")
        if rank in os.environ and tasks != "1":
            raise UsageError(
                f"{starter} started {tasks} tasks of a program that is to be started once: it "
                "starts a process for each device itself. Measure several machines as nodes of a "
                "Ray cluster (run_bench.py --suite NAME --on ray --accelerators V100,V100+V100), "
                "or start one run on each and write one report of them (run_bench.py report "
                "results/A results/B). docs/clusters.md shows both under Slurm."
            )
