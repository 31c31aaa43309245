#!/usr/bin/env python3
"""Check that the explain phase's figures add up.

    python perf/explaining.py [--cells mlp:width=512:128,resnet20:64] [--time-budget 4m]

Each cell (a suite, its settings, a batch size) is explained in a separate run, fp32 against amp-bf16 on this CPU:

1. classes over timed: the sum of the classes over the step without the profiler, the median over the rounds, for each
   precision: within 5 %. The next columns show the profiler's cost: the time that it adds to a step, for each operator
   of a class that it records.
2. unexplained: the share of the steps' difference that the classes leave unexplained: 10 % at most.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.phases.explain.reasons import Explanation, Step, explanations
from bench.report.format import share
from bench.report.reading.load import load
from perf import outcome

HERE = Path(__file__).resolve().parents[1]
CELLS = ("mlp:width=512:128", "mlp:width=1024:128", "resnet20:64", "vit_b_16:2")
ARM = "amp-bf16"
ADD_UP, MOST_UNEXPLAINED = 0.05, 0.10


def explain(cell: str, out: Path, budget: str | None = None) -> Explanation:
    """Explain one cell in a separate run.

    Args:
        cell: suite, its settings and batch size, separated by colons.
        out: the run's folder.
        budget: as for ``--time-budget``: the phase takes half of it; None is the default.
    """
    suite, *settings, batch = cell.split(":")
    command = [sys.executable, str(HERE / "run_bench.py"), "--suite", suite, "--batch-sizes", batch]
    command += ["--precisions", f"fp32,{ARM}", "--data", "synthetic", "--phases", "explain", "--out", str(out)]
    for setting in settings:
        command += ["--set", setting]
    if budget:
        command += ["--time-budget", budget]
    done = subprocess.run(command, cwd=out.parent, capture_output=True, text=True, check=False)
    rows = (
        load([out]).details["explain_figures"].assign(workload="", where="")
        if (out / "explain_figures.csv").is_file()
        else None
    )
    cells = [] if rows is None else explanations(rows)
    if not cells:
        raise SystemExit(done.stdout + done.stderr)
    return cells[0]


def adds_up(step: Step) -> float:
    """Return the sum of a step's classes over the step without the profiler: the median over the rounds."""
    return float(((step.rounds_ms - step.unprofiled_rest) / step.rounds_ms).median())


def recording_us(step: Step) -> float:
    """Return the time that the profiler adds to a step for each operator, in µs: the median over the rounds."""
    profiled_ms = step.of("step", "profiled").set_index("round")["value"]
    return 1e3 * float((profiled_ms - step.rounds_ms).median()) / (step.figure("operators") or math.nan)


def judge(cell: str, explained: Explanation) -> list[str]:
    """Return a row of the table: the cell, its figures, and the figures that missed their targets."""
    steps, speedup, unexplained = (explained.baseline, explained.arm), explained.speedup, explained.unexplained
    sums = [adds_up(step) for step in steps]
    rules = [reason.rule for reason in explained.reasons]
    missed = [f"classes {total:.3f}" for total in sums if abs(total - 1) > ADD_UP]
    if unexplained is not None and abs(unexplained.center) > MOST_UNEXPLAINED:
        missed.append("unexplained")
    return [
        cell,
        *(f"{step.timed_ms:.3g}" for step in steps),
        *(f"{total:.3f}" for total in sums),
        *(f"{recording_us(step):.1f}" for step in steps),
        "–" if unexplained is None else share(unexplained),
        f"{speedup.center:.3f}",
        ", ".join(rules) or "none",
        ", ".join(missed) or "none",
    ]


HEADERS = ("cell", "fp32 (ms)", f"{ARM} (ms)", "classes over timed, fp32", ARM)
HEADERS += ("profiler (µs an operator), fp32", ARM, "unexplained", "reached (×)")
HEADERS += ("rules", "missed")


def main() -> int:
    """Explain the cells and print their table; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=lambda text: text.split(","), default=list(CELLS))
    parser.add_argument("--time-budget", help="of each run; the phase takes half of it (default: as for any run)")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="ampmeter-explaining-") as runs:
        for number, cell in enumerate(options.cells):
            rows.append(judge(cell, explain(cell, Path(runs) / str(number), options.time_budget)))
    print(f"{outcome.machine()}\n")
    for line in (HEADERS, ["---"] * len(HEADERS), *rows):
        print(f"| {' | '.join(line)} |")
    return int(any(row[-1] != "none" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
