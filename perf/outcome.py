"""Output of scripts in this folder: a markdown table of figures and targets, and the machine."""

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
    """A figure and its target."""

    name: str
    interval: stats.Interval
    unit: str = ""
    most: float | None = None
    """The target: no more than this."""
    least: float | None = None
    """The target: no less than this."""
    by_interval: bool = False
    """Whether the target counts as missed only if the whole interval misses it, as with "no
    slower": two equal things differ by chance. If only the estimate misses it, nothing is shown."""

    @property
    def missed(self) -> bool:
        """Whether there is a target and it is missed."""
        center, low, high = self.interval.center, self.interval.low, self.interval.high
        if self.by_interval and low is not None and high is not None:
            return self._beyond(low, high)
        return self._beyond(center, center)

    @property
    def word(self) -> str:
        """Whether the target is met, for the table."""
        if self.most is None and self.least is None:
            return "–"
        if self.missed:
            return "MISSED"
        return "not shown" if self._beyond(self.interval.center, self.interval.center) else "yes"

    def _beyond(self, low: float, high: float) -> bool:
        """Whether all from ``low`` to ``high`` lies beyond the target."""
        above = self.most is not None and low > self.most
        below = self.least is not None and high < self.least
        return above or below

    @property
    def cells(self) -> list[str]:
        """The row of the table."""
        figures = [self.interval.center, self.interval.low, self.interval.high]
        center, *ends = [_figure(value) for value in figures if value is not None]
        bounds = [f"≤ {self.most:g}"] if self.most is not None else []
        bounds += [f"≥ {self.least:g}"] if self.least is not None else []
        written = f"{center} [{', '.join(ends)}]" if ends else center
        return [self.name, f"{written} {self.unit}".strip(), " ".join(bounds) or "–", self.word]


def ratio(log_ratios: Sequence[float]) -> stats.Interval:
    """Return a ratio with its interval, from logarithms of paired ratios."""
    return stats.rounds_interval(log_ratios).exp()


def machine() -> str:
    """Name the machine, torch and the threads, without importing torch."""
    info = Path("/proc/cpuinfo")
    listed = info.read_text() if info.is_file() else ""  # Linux alone has it
    model = re.search(r"^model name\s*:\s*(.+)$", listed, re.MULTILINE)
    name = model[1].strip() if model else platform.processor() or platform.machine()
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        cores = len(os.sched_getaffinity(0))
    threads = os.environ.get("OMP_NUM_THREADS", str(cores))
    torch, load = metadata.version("torch"), os.getloadavg()[0]
    return f"{name}, {cores} cores, torch {torch}, OMP threads {threads}, load {load:.1f}"


def report(title: str, outcomes: Sequence[Outcome], notes: Sequence[str] = ()) -> int:
    """Print the table; return 1 if a target is missed."""
    print(f"\n{title} — {machine()}\n")
    print("| figure | value [95 % interval] | target | met |")
    print("| --- | ---: | ---: | --- |")
    for outcome in outcomes:
        print(f"| {' | '.join(outcome.cells)} |")
    for note in dict.fromkeys(notes):
        print(f"\n{note}")
    return int(any(outcome.missed for outcome in outcomes))


def _figure(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1000 and math.isfinite(value) else f"{value:,.0f}"
