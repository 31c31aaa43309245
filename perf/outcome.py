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
    how much two equal things differ. Where the estimate alone misses it, it is not shown either way."""

    @property
    def missed(self) -> bool:
        """Whether the target is missed; where there is none, it is not."""
        center, low, high = self.found.center, self.found.low, self.found.high
        if self.doubtful and low is not None and high is not None:
            return self._beyond(low, high)
        return self._beyond(center, center)

    @property
    def word(self) -> str:
        """Whether the target is met, for the table."""
        if self.most is None and self.least is None:
            return "–"
        if self.missed:
            return "MISSED"
        return "not shown" if self._beyond(self.found.center, self.found.center) else "yes"

    def _beyond(self, low: float, high: float) -> bool:
        """Whether all from ``low`` to ``high`` lies beyond the target."""
        return (self.most is not None and low > self.most) or (self.least is not None and high < self.least)

    @property
    def cells(self) -> list[str]:
        """The row of the table."""
        bounds = [f"≤ {self.most:g}"] if self.most is not None else []
        bounds += [f"≥ {self.least:g}"] if self.least is not None else []
        return [self.name, _written(self.found, self.unit), " ".join(bounds) or "–", self.word]


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
    return int(any(outcome.missed for outcome in outcomes))


def _written(found: stats.Interval, unit: str) -> str:
    text = _figure(found.center)
    if found.low is not None and found.high is not None:
        text += f" [{_figure(found.low)}, {_figure(found.high)}]"
    return f"{text} {unit}".strip()


def _figure(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1000 and math.isfinite(value) else f"{value:,.0f}"
