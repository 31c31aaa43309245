#!/usr/bin/env python3
"""Compare the width of the default's intervals with that of another checkout, at equal measuring time.

    python perf/half_width.py --before CHECKOUT [--pairs 8] [--cases mlp,resnet20] [--loads quiet,busy]

Both command lines measure the same cell by turns, in fresh runs: amp-bf16 over fp32, of mlp of width 512 and of
resnet20, both at batch 64. The requested width is too small to reach, so both use the whole budget. Under the load
"busy" another process computes all the time. Each checkout reports its runs' intervals, and the other one those of
this checkout's runs, too.

1. The half-width of the interval, here over before: not shown to be above 1.25, and of the same processes at most that.
2. The spread of the runs' centres, here over before: not shown to be above 1.
3. Processes of quiet runs that show evidence of a disturbance (``stats.disturbed``): at most 5 %.
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

import numpy as np
import pandas as pd
from scipy import stats as scipy_stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import stats
from perf import outcome, side_by_side

CASES = {
    "mlp": "--suite mlp --set width=512 --batch-sizes 64 --phases speed --precisions fp32,amp-bf16",
    "resnet20": "--suite resnet20 --batch-sizes 64 --phases speed --precisions fp32,amp-bf16",
}
WHOLE_BUDGET = ["--target-ci", "0.01%", "--time-budget", "30"]
WIDER = 1.25
"""The reported confidence is 97.5 %."""
FALSE_PCT = 5.0


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run's interval of the log-speedup, its duration, and which of its processes show evidence."""

    log: stats.Interval
    wall_s: float
    other: stats.Interval | None = None
    """The interval of the same processes by another checkout's rules."""
    disturbed: tuple[bool, ...] = ()
    """Empty of a checkout that records no evidence."""

    @property
    def half(self) -> float:
        """Half the interval's width."""
        assert self.log.half_width is not None
        return self.log.half_width


def measure(checkout: Path, words: Sequence[str], other: Path | None = None) -> Measured:
    """Run a checkout's command line in an empty folder; return the interval of its report, and of another's."""
    with tempfile.TemporaryDirectory(prefix="ampmeter-half-") as folder:
        program, start = [sys.executable, str(checkout / "run_bench.py")], time.perf_counter()
        done = subprocess.run(
            [*program, *words, "--out", "run"], cwd=folder, capture_output=True, text=True, check=False
        )
        wall_s = time.perf_counter() - start
        if (log := reported(checkout, folder)) is None:
            raise SystemExit(done.stdout + done.stderr)
        by_other = reported(other, folder) if other else None
        return Measured(log=log, wall_s=wall_s, other=by_other, disturbed=evidence(Path(folder, "run/trials.csv")))


def reported(checkout: Path, folder: str) -> stats.Interval | None:
    """Return the interval of a run's log-speedup by a checkout's rules; None if it has none."""
    command = [sys.executable, str(checkout / "run_bench.py"), "report", "run", "--json"]
    report = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=False)
    rows = json.loads(report.stdout)["results"] if report.returncode == 0 else []
    if not (rows := [row for row in rows if row["speedup_low"] is not None]):
        return None
    center, low, high = (math.log(rows[0][name]) for name in ("speedup", "speedup_low", "speedup_high"))
    return stats.Interval(center=center, low=low, high=high, n=len(rows[0]["process_speedups"]))


def evidence(trials: Path) -> tuple[bool, ...]:
    """Return of each process of a run whether it shows evidence of a disturbance."""
    if not trials.exists():
        return ()
    rows = pd.read_csv(trials)
    if missing := set(stats.EVIDENCE) - set(rows):
        assert missing == {"switches_per_s"}  # of an older checkout
        return ()
    timed = rows[(rows["phase"] == "speed") & (rows["precision"] == "amp-bf16")]
    return tuple(map(bool, stats.disturbed(*(timed[name].to_numpy() for name in stats.EVIDENCE))))


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
    of_same = [run.half / run.other.half_width for run in here if run.other and run.other.half_width]
    spreads = [float(np.std([run.log.center for run in runs], ddof=1)) for runs in (here, there)]
    low, high = scipy_stats.f.ppf([0.025, 0.975], len(here) - 1, len(there) - 1)
    spread = spreads[0] / spreads[1]
    interval = stats.Interval(center=spread, low=spread / high**0.5, high=spread / low**0.5, n=len(here))
    return [
        outcome.Outcome(
            name=f"{name}: half-width of the same processes, the largest ratio",
            interval=stats.Interval(center=max(of_same), low=None, high=None, n=len(of_same)),
            most=WIDER,
        ),
        outcome.Outcome(
            name=f"{name}: half-width", interval=stats.student_interval(ratios).exp(), most=WIDER, by_interval=True
        ),
        outcome.Outcome(name=f"{name}: spread", interval=interval, most=1.0, by_interval=True),
    ]


def main() -> int:
    """Print each run, then the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    side_by_side.add_option(parser, required=True)
    parser.add_argument("--pairs", type=int, default=8, help="runs of each (default: 8)")
    parser.add_argument("--cases", default=",".join(CASES), help="of mlp and resnet20 (default: both)")
    parser.add_argument("--loads", default="quiet,busy", help="of quiet and busy (default: both)")
    options = parser.parse_args()
    outcomes, told = [], list[bool]()
    print("| case | load | pair | checkout | centre | half-width | processes | wall (s) |")
    print("| --- | --- | ---: | --- | ---: | ---: | ---: | ---: |")
    for case in options.cases.split(","):
        for busy in options.loads.split(","):
            measured: dict[str, list[Measured]] = {"here": [], "before": []}
            for pair, side, checkout in side_by_side.turns(side_by_side.checkouts(options.before), options.pairs):
                with load(busy):
                    other = options.before.resolve() if side == "here" else None
                    run = measure(checkout, [*CASES[case].split(), *WHOLE_BUDGET], other)
                measured[side].append(run)
                told += run.disturbed if busy == "quiet" else ()
                print(
                    f"| {case} | {busy} | {pair} | {side} | {math.exp(run.log.center):.4f} | ±{run.half:.2%} "
                    f"| {run.log.n} | {run.wall_s:.0f} |",
                    flush=True,
                )
            outcomes += compared(f"{case}, {busy}", measured["here"], measured["before"])
    if told:
        share = stats.Interval(center=100 * float(np.mean(told)), low=None, high=None, n=len(told))
        name = f"quiet processes with evidence, of {len(told)}"
        outcomes.append(outcome.Outcome(name=name, interval=share, unit="%", most=FALSE_PCT))
    return outcome.report("Half-widths", outcomes)


if __name__ == "__main__":
    raise SystemExit(main())
