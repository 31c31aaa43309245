"""What ends a process: the error that it reports, or how it ended without a report. Imports torch only when called."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.results.records import Failed
from bench.spec.errors import UnsupportedError, UsageError

UNUSED = "Expected to have finished reduction in the prior iteration"
"""What DistributedDataParallel says in the second step of a model that left gradients out of the first."""

FROM_LOADER = "in DataLoader worker process"
"""In the first line of an error that a loader's process raised; what it was is in the last."""
LOST = ("gloo/transport", "Connection closed by peer", "Connection reset by peer")
"""In what gloo raises, as a plain RuntimeError, where another process is gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorReport:
    """What one of several processes says of an error that ends it."""

    failed: Failed
    told: str
    """The error with its traceback."""
    echo: bool = False
    """Whether it is that another process was lost, which may not have been heard of yet."""


def failure(error: Exception) -> Failed:
    """Return what is to be told of an error."""
    if isinstance(error, UsageError):
        return Failed(kind="unsupported" if isinstance(error, UnsupportedError) else "usage", text=str(error))
    if UNUSED in str(error):
        return Failed(
            kind="unsupported",
            text="some of the model's parameters take no part in a step's loss, which goes on one device and not on "
            "several: they wait for each other's gradient of every parameter",
        )
    return Failed(kind=_kind(error), text=f"{type(error).__name__}: {_first_line(str(error))}")


def is_echo(error: Exception) -> bool:
    """Say whether an error is that another of the processes that train together is gone, or says nothing."""
    from torch import distributed

    if isinstance(error, distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in LOST)


def _kind(error: Exception) -> Literal["oom", "unsupported", "error"]:
    from bench.devices.out_of_memory import is_out_of_memory
    from bench.training.techniques import refused

    if is_out_of_memory(error):
        return "oom"
    return "unsupported" if refused(error) else "error"


def _first_line(text: str) -> str:
    lines = text.strip().splitlines() or ["no message"]
    if FROM_LOADER in lines[0]:
        return lines[-1].partition(": ")[2] or lines[-1]
    return lines[0]


# How a process ended that could not say so itself.


def exit_cause(exit_code: int | None, kills_before: int | None) -> tuple[Literal["oom", "died"], str]:
    """Return whether memory did not suffice, and how a process ended, as the end of a sentence.

    Args:
        exit_code: the process's; negative is the number of the signal that ended it.
        kills_before: what ``oom_kills`` returned before it was started.
    """
    kills = oom_kills()
    if exit_code == -9 and kills is not None and kills_before is not None and kills > kills_before:
        return "oom", "by the system's out-of-memory killer"
    return "died", f"by signal {-exit_code}" if exit_code is not None and exit_code < 0 else f"by exit code {exit_code}"


def oom_kills() -> int | None:
    """Return how often the system has run out of memory and killed a process, or None where it does not tell."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    counts = [int(line.split()[1]) for line in lines if line.startswith("oom_kill ")]
    return counts[0] if counts else None
