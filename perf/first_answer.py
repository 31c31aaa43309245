#!/usr/bin/env python3
"""Measure how long a new user waits for the first answer of ``make bench``, in an empty folder.

    python perf/first_answer.py [--rounds 3]
    python perf/first_answer.py --quick mlp digits resnet20 gpt resnet50 vit_b_16

1. From the start to the first speedup with an interval, when the first process of a comparison ends: 30 s.
2. To the end of the run and its report, with the parity of digits judged: 120 s.
3. The same command once more, when everything has been measured: 15 s.
4. The plan's estimate over the run's duration: within 30 %.

With ``--quick`` it runs each suite once with ``run_bench.py --quick``: the first speedup within 30 s and the end within
60 s, of resnet50 and vit_b_16 within 240 s; the plan's estimate within 30 %.

The targets hold for two cores of a CPU with fast bfloat16 that run nothing else.
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

ROOT = Path(__file__).resolve().parents[1]
SUITES = "mlp,digits"
PLANNED = re.compile(r"trials?, about ([\d.]+) (s|min|h) in all")
SECONDS = {"s": 1, "min": 60, "h": 3600}
SPEEDUP = re.compile(r"× fp32 \[[\d.]+, [\d.]+\]")


def run(folder: Path, *words: str) -> tuple[float | None, float, float | None, str]:
    """Run the command; return the seconds to the first speedup and to the end, the estimate, and the output."""
    command = [sys.executable, "run_bench.py", *(words or ("--suite", SUITES)), "--resume", str(folder)]
    start, first, estimated, lines = time.perf_counter(), None, None, []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if first is None and SPEEDUP.search(line):
                first = time.perf_counter() - start
            if match := PLANNED.search(line):
                estimated = float(match[1]) * SECONDS[match[2]]
    if process.returncode:
        raise SystemExit("".join(lines[-20:]))
    return first, time.perf_counter() - start, estimated, "".join(lines)


def quick(suites: list[str]) -> None:
    """Print a row for each suite."""
    print("| suite | estimate (s) | whole (s) | first speedup (s) | speedup |")
    print("| --- | ---: | ---: | ---: | --- |")
    for suite in suites:
        with tempfile.TemporaryDirectory(prefix="ampmeter-quick-") as parent:
            first, whole, estimated, printed = run(Path(parent) / "run", "--suite", suite, "--quick")
        speedup = re.search(r"= (\S+)× fp32 (\[.*?\])", printed)
        cells = (f"{value:.1f}" if value is not None else "–" for value in (estimated, whole, first))
        print(f"| {suite} | {' | '.join(cells)} | {' '.join(speedup.groups()) if speedup else '–'} |", flush=True)


def main() -> None:
    """Print a row for each round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="new users, one after the other (default: 3)")
    parser.add_argument("--quick", nargs="+", metavar="SUITE", help="run these suites with --quick instead")
    options = parser.parse_args()
    if options.quick:
        quick(options.quick)
        return
    print("| first speedup (s) | whole (s) | again (s) | estimate (s) |")
    print("| ---: | ---: | ---: | ---: |")
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="ampmeter-first-") as parent:
            first, whole, estimated, _ = run(Path(parent) / "run")
            _, again, _, _ = run(Path(parent) / "run")
        cells = [f"{value:.1f}" if value is not None else "–" for value in (first, whole, again, estimated)]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
