#!/usr/bin/env python3
"""Check the explain phase: whether its classes add up to the step, and that healthy models have no reason.

    python perf/explaining.py [--cells mlp:width=512:128,resnet20:64]

Each cell (a suite, its settings, a batch size) is explained in a run of its own, fp32 against amp-bf16 on this CPU.
Classes over timed is the sum of the classes of work over the step without the profiler: within 5 % where operators take
40 µs on average, which the next column shows.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.phases.explain.report import explained
from bench.report.reading.load import load
from perf import outcome

HERE = Path(__file__).resolve().parents[1]
CELLS = ("mlp:width=1024:128", "resnet20:64", "cifar10_resnet18:16", "vit_b_16:2", "gpt:256", "lstm:64")
HEADERS = ("cell", "precision", "a step (ms)", "classes over timed", "an operator (µs)", "rules")


def explain(cell: str, out: Path) -> list[list[str]]:
    """Explain one cell in a run of its own; return a row for fp32, and one for the other precision.

    Args:
        cell: suite, its settings and batch size, separated by colons.
        out: the run's folder.
    """
    suite, *settings, batch = cell.split(":")
    command = [sys.executable, str(HERE / "run_bench.py"), "explain", "--suite", suite, "--batch-sizes", batch]
    command += ["--precisions", "fp32,amp-bf16", "--gpus", "cpu", "--out", str(out)]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, cwd=out.parent, capture_output=True, text=True, check=False)
    explanations = explained(load([out])) if (out / "explain_figures.csv").is_file() else []
    if not explanations:
        raise SystemExit(done.stdout + done.stderr)
    (explanation,) = explanations
    rules = ", ".join(reason.rule for reason in explanation.reasons)
    rows = []
    for step, causes in ((explanation.baseline, ""), (explanation.arm, rules or "none")):
        operator_us = 1e3 * step.timed_ms / step.figure("operators")
        share = step.profiled_ms / step.timed_ms
        rows.append([cell, step.precision, f"{step.timed_ms:.3g}", f"{share:.3f}", f"{operator_us:.0f}", causes])
    return rows


def main() -> None:
    """Explain the cells and print their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=lambda text: text.split(","), default=list(CELLS))
    options = parser.parse_args()
    print(f"{outcome.machine()}\n")
    for line in (HEADERS, ["---"] * len(HEADERS)):
        print(f"| {' | '.join(line)} |")
    with tempfile.TemporaryDirectory(prefix="ampmeter-explaining-") as runs:
        for number, cell in enumerate(options.cells):
            for row in explain(cell, Path(runs) / str(number)):
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
