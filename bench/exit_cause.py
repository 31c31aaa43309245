"""How a process ended that could not say so itself."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


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
