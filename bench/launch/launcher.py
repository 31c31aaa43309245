"""The interface between a run and what runs its trials: this machine, ranks of torchrun or srun, or a Ray cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.results.records import Device, Environment, Message
from bench.spec.errors import UsageError
from bench.spec.trial import Trial

if TYPE_CHECKING:
    from bench.launch.torchrun import Job
    from bench.spec.trial import Request


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a process ended: ``done`` with a value, or why not."""

    kind: str
    """``done``, ``usage``, ``oom``, ``error``, ``died``, ``timeout``, or ``unsupported``, said by a process
    or known without one; ``import`` if no process can import its libraries; ``lost`` if what ran the process was lost,
    and not by its fault."""
    value: Any = None
    text: str = ""
    log: str = ""
    """All that a process that failed has printed."""


def ending_of(function: Callable[..., Any], *arguments: object) -> Ending:
    """Return a function's value, or the UsageError that it raised, as an ending, which other machines can be sent."""
    try:
        return Ending(kind="done", value=function(*arguments))
    except UsageError as error:
        return Ending(kind="usage", text=str(error))


class Launcher(ABC):
    """Runs functions of the worker, each in a fresh process, on this machine or elsewhere."""

    started_by = ""
    """What starts this program's processes, where a user does not."""
    overlapping = False
    """Whether trials of different placements run at the same time."""

    def __init__(self) -> None:
        """Start with nothing to tell, and nobody to tell it to."""
        self.on_start: Callable[[int], None] = lambda _pid: None
        """Called with the pid of each process that starts on this machine."""
        self.workspace: Path | None = None
        """Folder in which training keeps its checkpoints; None keeps none."""
        self.notes: list[str] = []
        """What a reader of the run must know about how it went."""

    @abstractmethod
    def survey(self, gpus: tuple[str, ...] | None) -> Environment:
        """Describe the machine and the devices that were named."""

    @abstractmethod
    def call(self, target: str, *arguments: object) -> Any:
        """Call a function of the worker, ``module:name``, in a fresh process and return its value.

        Raises:
            UsageError: the function raised one, its process failed, died or hung, or nodes return different values.
        """

    @abstractmethod
    def run(self, trial: Trial, device: Device, on_message: Callable[[Message], None]) -> Ending:
        """Run one trial and pass its records on."""

    def cancel(self) -> None:  # noqa: B027
        """End what is running in other threads."""

    def close(self) -> None:  # noqa: B027
        """Release what was held."""


def open_launcher(request: Request, job: Job | None) -> Launcher:
    """Return the launcher of this machine, of the ranks that torchrun started, or with ``--on ray`` of a cluster.

    Args:
        request: the command line's options.
        job: this rank's place among those that torchrun or srun started; None if there are no others.

    Raises:
        UsageError: a rank does not come, no cluster answers, or it lacks the accelerators.
    """
    if job is not None:
        if request.on is not None:
            raise UsageError("--on ray starts its own processes: leave out torchrun and srun, or --on.")
        from bench.launch.torchrun import TorchrunLauncher

        return TorchrunLauncher(job, request)
    if request.on is None:
        from bench.launch.local import LocalLauncher

        return LocalLauncher()
    from bench.launch.ray.launcher import RayLauncher

    files = [word for word in request.suites if word.endswith(".py")]
    return RayLauncher(request.on.partition("://")[2] or None, request.accelerators, files)


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
