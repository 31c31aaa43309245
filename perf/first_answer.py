#!/usr/bin/env python3
"""Measure how long a new user waits for the first answer of ``make bench``, in an empty folder.

    python perf/first_answer.py [--load] [--emulated]
    python perf/first_answer.py --quick mlp digits resnet20 gpt resnet50 vit_b_16

1. From the start to the first speedup with an interval, when the first process of a comparison
   ends: 30 s.
2. To the end of the run and its report: 90 s, also with ``--load`` and ``--emulated``; what is
   undecided then.
3. The plan's estimate, which counts what is left undecided, too.

With ``--quick`` it runs each suite once with ``run_bench.py --quick``: the first speedup within 30
s and the end within 60 s, of resnet50 and vit_b_16 within 240 s; the plan's estimate within 30 %.

The other targets hold for two cores of a CPU with fast bfloat16 that run nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

ROOT = Path(__file__).resolve().parents[1]
WORDS = ("--suite", "mlp,digits", "--within", "90s")  # as in the Makefile
PLANNED = re.compile(r"^Trials: \d+, about ([\d.]+) (s|min|h) in all")
BUSY = (sys.executable, "-c", "while True: pass")
SECONDS = {"s": 1, "min": 60, "h": 3600}
SPEEDUP = re.compile(r"× as fast \[[\d.]+, [\d.]+\]")


def run(folder: Path, *words: str) -> list[float | None]:
    """Run the command.

    Returns:
        The plan's estimate, and the seconds to the end and to the first speedup.
    """
    script, data = str(ROOT / "run_bench.py"), str(ROOT / "data")
    command = [sys.executable, script, *words, "--data-dir", data, "--resume", str(folder)]
    first = estimated = None
    lines = []
    start = time.perf_counter()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=folder.parent, text=True, **pipes) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if first is None and SPEEDUP.search(line):
                first = time.perf_counter() - start
            if match := PLANNED.search(line):
                estimated = float(match[1]) * SECONDS[match[2]]
    if process.returncode:
        raise SystemExit("".join(lines[-20:]))
    return [estimated, time.perf_counter() - start, first]


def main() -> None:
    """Measure in the setting that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", nargs="+", metavar="SUITE", help="run these suites with --quick instead"
    )
    parser.add_argument("--load", action="store_true", help="beside a busy process for each core")
    parser.add_argument(
        "--emulated", action="store_true", help="limit oneDNN to AVX2, where it emulates bfloat16"
    )
    options = parser.parse_args()
    if options.emulated:
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"
    settings = [("--suite", suite, "--quick") for suite in options.quick or ()] or [WORDS]
    print("| command | estimate (s) | whole (s) | first speedup (s) | undecided |")
    print("| --- | ---: | ---: | ---: | --- |")
    with ExitStack() as stack:
        if options.load:
            for _ in range(os.cpu_count() or 1):
                stack.callback(stack.enter_context(subprocess.Popen(BUSY)).kill)
        for words in settings:
            place = stack.enter_context(tempfile.TemporaryDirectory(prefix="ampmeter-first-"))
            folder = Path(place) / "run"
            cells = [" ".join(words)]
            for seconds in run(folder, *words):
                cells.append("–" if seconds is None else f"{seconds:.1f}")
            undecided = json.loads((folder / "run.json").read_text())["undecided"]
            cells.append(", ".join(undecided) or "nothing")
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
