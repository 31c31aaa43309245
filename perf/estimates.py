#!/usr/bin/env python3
"""Compare the time that a run estimates in its plan with the time that it takes: ten runs of different kinds.

    python perf/estimates.py [--kinds 1,2,5]

Each runs from its plan to its end, including its report. The estimate is right if the time lies within its printed ±.
Target: 8 of 10.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.planning.plan import ESTIMATE_ERROR
from perf import outcome

ROOT = Path(__file__).resolve().parents[1]
KINDS = (
    "--suite mlp",
    "--suite digits",
    "--suite mlp --phases speed --batch-sizes 64,128",
    "--suite mlp,digits --quick",
    "--suite digits --phases train --seeds 0,1,2 --precisions fp32",
    "--suite mlp --phases train --epochs 10 --precisions fp32",
    "--suite digits --phases inference",
    "--suite resnet20 --phases memory --batch-sizes 16,32 --precisions fp32",
    "--suite resnet20 --phases speed --batch-sizes 16 --precisions fp32",
    "--suite digits --phases floor,speed --precisions fp32",
)
PLANNED = re.compile(r"trials?, about ([\d.]+) (s|min|h) in all")
SECONDS = {"s": 1, "min": 60, "h": 3600}
LEAST = 0.8
"""Share of the runs whose estimate is right."""


def run(words: str) -> tuple[float, float]:
    """Run the command line in an empty folder; return the estimated seconds, and those from the plan to the end."""
    with tempfile.TemporaryDirectory(prefix="ampmeter-estimates-") as folder:
        command = [sys.executable, str(ROOT / "run_bench.py"), *words.split(), "--out", "run"]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if match := PLANNED.search(line):
                    planned, estimated_s = time.perf_counter(), float(match[1]) * SECONDS[match[2]]
    return estimated_s, time.perf_counter() - planned


def main() -> int:
    """Print a row for each kind, and the number of right estimates; return 1 if they are too few."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="", help="numbers of some kinds, from 1 (default: all)")
    chosen = [int(word) - 1 for word in parser.parse_args().kinds.split(",") if word] or range(len(KINDS))
    print(f"Estimates — {outcome.machine()}\n")
    print("| command | estimate (s) | took (s) | estimate over time | right |")
    print("| --- | ---: | ---: | ---: | --- |")
    right = 0
    for index in chosen:
        estimated_s, took_s = run(KINDS[index])
        close = abs(estimated_s / took_s - 1) <= ESTIMATE_ERROR
        right += close
        word = "yes" if close else "no"
        print(
            f"| {KINDS[index]} | {estimated_s:.0f} | {took_s:.0f} | {estimated_s / took_s:.2f} | {word} |", flush=True
        )
    print(f"\n{right} of {len(chosen)} are right.")
    return int(right < LEAST * len(chosen))


if __name__ == "__main__":
    raise SystemExit(main())
