#!/usr/bin/env python3
"""Compare the width of the default's intervals with that of another checkout, at equal measuring time.

    python perf/half_width.py --before CHECKOUT [--pairs 8] [--cases mlp,resnet20] [--loads quiet,busy]

Both command lines measure the same cell by turns, in fresh runs: amp-bf16 over fp32, of mlp of width 512 and of
resnet20, both at batch 64. The requested width is too small to reach, so both use the whole budget. Under the load
"busy" another process computes all the time. Each checkout reports its runs' intervals.

1. The half-width of the interval, here over before: not shown to be above 1.
2. The spread of the runs' centres, here over before: not shown to be above 1.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats as scipy_stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import stats
from perf import outcome, side_by_side

CASES = {
    "mlp": "--suite mlp --set width=512 --batch-sizes 64 --phases speed --precisions fp32,amp-bf16",
    "resnet20": "--suite resnet20 --batch-sizes 64 --phases speed --precisions fp32,amp-bf16",
}
WHOLE_BUDGET = ["--target-ci", "0.01%", "--time-budget", "30"]
TARGET: dict[str, Any] = {"most": 1.0, "by_interval": True}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run's interval of the log-speedup, and its duration."""

    log: stats.Interval
    wall_s: float

    @property
    def half(self) -> float:
        """Half the interval's width."""
        assert self.log.half_width is not None
        return self.log.half_width


def measure(checkout: Path, words: Sequence[str]) -> Measured:
    """Run a checkout's command line in an empty folder; return the interval of its report."""
    with tempfile.TemporaryDirectory(prefix="ampmeter-half-") as folder:
        program, start = [sys.executable, str(checkout / "run_bench.py")], time.perf_counter()
        done = subprocess.run(
            [*program, *words, "--out", "run"], cwd=folder, capture_output=True, text=True, check=False
        )
        wall_s = time.perf_counter() - start
        report = subprocess.run([*program, "report", "run", "--json"], cwd=folder, stdout=subprocess.PIPE, check=False)
    rows = json.loads(report.stdout)["results"] if report.returncode == 0 else []
    if not (rows := [row for row in rows if row["speedup_low"] is not None]):
        raise SystemExit(done.stdout + done.stderr)
    center, low, high = (math.log(rows[0][name]) for name in ("speedup", "speedup_low", "speedup_high"))
    processes = len(rows[0]["process_speedups"])
    return Measured(log=stats.Interval(center=center, low=low, high=high, n=processes), wall_s=wall_s)


@contextmanager
def load(name: str) -> Iterator[None]:
    """Run another process that computes, if the load is ``busy``."""
    if name != "busy":
        yield
        return
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def compared(name: str, here: Sequence[Measured], there: Sequence[Measured]) -> list[outcome.Outcome]:
    """Return the half-widths' ratio with its interval over the pairs, and the spreads' ratio with an F interval."""
    ratios = [math.log(run.half / other.half) for run, other in zip(here, there, strict=True)]
    spreads = [float(np.std([run.log.center for run in runs], ddof=1)) for runs in (here, there)]
    low, high = scipy_stats.f.ppf([0.025, 0.975], len(here) - 1, len(there) - 1)
    spread = spreads[0] / spreads[1]
    interval = stats.Interval(center=spread, low=spread / high**0.5, high=spread / low**0.5, n=len(here))
    return [
        outcome.Outcome(name=f"{name}: half-width", interval=stats.student_interval(ratios).exp(), **TARGET),
        outcome.Outcome(name=f"{name}: spread", interval=interval, **TARGET),
    ]


def main() -> int:
    """Print each run, then the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    side_by_side.add_option(parser, required=True)
    parser.add_argument("--pairs", type=int, default=8, help="runs of each (default: 8)")
    parser.add_argument("--cases", default=",".join(CASES), help="of mlp and resnet20 (default: both)")
    parser.add_argument("--loads", default="quiet,busy", help="of quiet and busy (default: both)")
    options = parser.parse_args()
    outcomes = []
    print("| case | load | pair | checkout | centre | half-width | processes | wall (s) |")
    print("| --- | --- | ---: | --- | ---: | ---: | ---: | ---: |")
    for case in options.cases.split(","):
        for busy in options.loads.split(","):
            measured: dict[str, list[Measured]] = {"here": [], "before": []}
            for pair, side, checkout in side_by_side.turns(side_by_side.checkouts(options.before), options.pairs):
                with load(busy):
                    run = measure(checkout, [*CASES[case].split(), *WHOLE_BUDGET])
                measured[side].append(run)
                print(
                    f"| {case} | {busy} | {pair} | {side} | {math.exp(run.log.center):.4f} | ±{run.half:.2%} "
                    f"| {run.log.n} | {run.wall_s:.0f} |",
                    flush=True,
                )
            outcomes += compared(f"{case}, {busy}", measured["here"], measured["before"])
    return outcome.report("Half-widths", outcomes)


if __name__ == "__main__":
    raise SystemExit(main())
