#!/usr/bin/env python3
"""How narrow the default's intervals are beside those of another checkout, at equal time of measuring.

    python perf/half_width.py --before CHECKOUT [--pairs 8] [--cases mlp,resnet20] [--loads quiet,busy]

Both command lines measure the same cell in turn, in fresh runs: mlp of width 512 at batch 64, amp-bf16 over fp32, and
resnet20 at batch 64, where a CPU emulates bfloat16 fp32 over fp32 (``--phases floor``). This checkout is asked for a
width that it does not reach, so that it uses its whole budget, as the other one does. Beside "busy" one process
computes all the time.

1. The half-width of the interval over processes, here over there: 0.6 at most.
2. The spread of the runs' centres, here over there: 1 at most.

The other checkout's interval is Student's over its processes' log-speedups, as it was before processes were weighed.
"""

from __future__ import annotations

import argparse
import csv
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
from scipy import stats as scipy_stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import stats
from perf import outcome

HERE = Path(__file__).resolve().parents[1]
CASES = {
    "mlp": "--suite mlp --set width=512 --batch-sizes 64 --phases speed --precisions fp32,amp-bf16",
    "resnet20": "--suite resnet20 --batch-sizes 64 --phases floor --precisions fp32",
}
WHOLE_BUDGET = ["--target-ci", "0.01%"]
BUDGETS_S = {("mlp", "quiet"): "30", ("mlp", "busy"): "30", ("resnet20", "quiet"): "15", ("resnet20", "busy"): "21"}
"""Seconds of timing an arm here, with which a run takes no longer than the other checkout's (the column wall shows it):
processes that start cost more where a step is long."""
MOST_HALF, MOST_SPREAD = 0.6, 1.0


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run's interval of the log-speedup, and what it took."""

    log: stats.Interval
    processes: int
    wall_s: float

    @property
    def half(self) -> float:
        """Half the interval's width."""
        assert self.log.half_width is not None
        return self.log.half_width


def measure(checkout: Path, words: Sequence[str]) -> Measured:
    """Run a checkout's command line in an empty folder; read its processes' speedups."""
    with tempfile.TemporaryDirectory(prefix="ampmeter-half-") as folder:
        run = Path(folder) / "run"
        start = time.perf_counter()
        command = [sys.executable, str(checkout / "run_bench.py"), *words, "--out", str(run)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        wall_s = time.perf_counter() - start
        with (run / "trials.csv").open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["speedup"]]
    if not rows:
        raise SystemExit(done.stdout + done.stderr)
    names = ("speedup", "speedup_low", "speedup_high")
    logs = [[math.log(float(row[name])) for name in names] for row in rows]
    if checkout == HERE:
        log = stats.process_interval([stats.Interval(center=c, low=low, high=high, n=1) for c, low, high in logs])
    else:
        log = stats.student_interval([center for center, _, _ in logs])
    return Measured(log=log, processes=len(rows), wall_s=wall_s)


@contextmanager
def load(name: str) -> Iterator[None]:
    """Keep one process computing meanwhile, where it is to be ``busy``."""
    if name != "busy":
        yield
        return
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def compared(name: str, here: Sequence[Measured], there: Sequence[Measured]) -> list[outcome.Outcome]:
    """Return the half-widths' ratio with its interval over the pairs, and the spreads' ratio with that of F."""
    ratios = [math.log(one.half / other.half) for one, other in zip(here, there, strict=True)]
    spreads = [float(np.std([one.log.center for one in runs], ddof=1)) for runs in (here, there)]
    low, high = scipy_stats.f.ppf([0.025, 0.975], len(here) - 1, len(there) - 1)
    spread = spreads[0] / spreads[1]
    interval = stats.Interval(center=spread, low=spread / high**0.5, high=spread / low**0.5, n=len(here))
    return [
        outcome.Outcome(name=f"{name}: half-width", interval=stats.student_interval(ratios).exp(), most=MOST_HALF),
        outcome.Outcome(name=f"{name}: spread", interval=interval, most=MOST_SPREAD, by_interval=True),
    ]


def main() -> int:
    """Print each run, then the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, metavar="CHECKOUT", help="the checkout to compare with")
    parser.add_argument("--pairs", type=int, default=8, help="runs of each (default: 8)")
    parser.add_argument("--cases", default=",".join(CASES), help="of mlp and resnet20 (default: both)")
    parser.add_argument("--loads", default="quiet,busy", help="of quiet and busy (default: both)")
    options = parser.parse_args()
    outcomes = []
    print("| case | load | pair | checkout | centre | half-width | processes | wall (s) |")
    print("| --- | --- | ---: | --- | ---: | ---: | ---: | ---: |")
    for case in options.cases.split(","):
        for busy in options.loads.split(","):
            found: dict[str, list[Measured]] = {"here": [], "before": []}
            for pair in range(options.pairs):
                order = ("here", "before") if pair % 2 else ("before", "here")
                for which in order:
                    checkout = HERE if which == "here" else options.before.resolve()
                    whole = [*WHOLE_BUDGET, "--time-budget", BUDGETS_S[case, busy]]
                    words = [*CASES[case].split(), *(whole if which == "here" else [])]
                    with load(busy):
                        one = measure(checkout, words)
                    found[which].append(one)
                    print(
                        f"| {case} | {busy} | {pair} | {which} | {math.exp(one.log.center):.4f} | ±{one.half:.2%} "
                        f"| {one.processes} | {one.wall_s:.0f} |",
                        flush=True,
                    )
            outcomes += compared(f"{case}, {busy}", found["here"], found["before"])
    return outcome.report("Half-widths", outcomes)


if __name__ == "__main__":
    raise SystemExit(main())
