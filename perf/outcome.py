"""What the scripts here print: figures with intervals and targets, as a markdown table under the machine's name."""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from bench import stats


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One figure beside its target."""

    name: str
    found: stats.Interval
    unit: str = ""
    most: float | None = None
    """The target: no more than this."""
    least: float | None = None
    """The target: no less than this."""
    doubtful: bool = False
    """Whether the target is missed only where the whole interval misses it, as with "no slower": chance decides by
    how much two equal things differ."""

    @property
    def met(self) -> bool:
        """Whether the estimate meets its target; one without a target does."""
        center, low, high = self.found.center, self.found.low, self.found.high
        lowest = low if self.doubtful and low is not None else center
        highest = high if self.doubtful and high is not None else center
        return not (self.most is not None and lowest > self.most) and not (
            self.least is not None and highest < self.least
        )

    @property
    def cells(self) -> list[str]:
        """The row of the table."""
        bounds = [f"≤ {self.most:g}"] if self.most is not None else []
        bounds += [f"≥ {self.least:g}"] if self.least is not None else []
        word = "–" if not bounds else "yes" if self.met else "MISSED"
        return [self.name, _written(self.found, self.unit), " ".join(bounds) or "–", word]


def ratio(log_ratios: Sequence[float]) -> stats.Interval:
    """Return a ratio with its interval, from the logarithms of paired ones."""
    return stats.robust_interval(log_ratios).exp()


def seconds(times: Sequence[float]) -> stats.Interval:
    """Return the geometric mean of some times, trimmed, with its interval."""
    return stats.robust_interval([math.log(time) for time in times]).exp()


def machine() -> str:
    """Name the machine, torch and the threads, without importing torch where nothing else has."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.is_file() else None
    name = found[1].strip() if found else platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = os.environ.get("OMP_NUM_THREADS", str(cores))
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{name}, {cores} cores, torch {metadata.version('torch')}, OMP threads {threads}{load}"


def report(title: str, outcomes: Sequence[Outcome], notes: Sequence[str] = ()) -> int:
    """Print the table; return 1 if a target is missed."""
    print(f"\n{title} — {machine()}\n")
    print("| what | found [95 % interval] | target | met |")
    print("| --- | ---: | ---: | --- |")
    for outcome in outcomes:
        print(f"| {' | '.join(outcome.cells)} |")
    for note in notes:
        print(f"\n{note}")
    return int(not all(outcome.met for outcome in outcomes))


def _written(found: stats.Interval, unit: str) -> str:
    text = _figure(found.center)
    if found.low is not None and found.high is not None:
        text += f" [{_figure(found.low)}, {_figure(found.high)}]"
    return f"{text} {unit}".strip()


def _figure(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1000 and math.isfinite(value) else f"{value:,.0f}"
