#!/usr/bin/env python3
"""Every check that needs a GPU, in one command with a short table at its end.

    python perf/gpu_checklist.py OUT [--data folder:DIR] [--quick] [--only tests,doctor]

Writes the tests' log and, for each suite, a run with its report into OUT (two folders deep at most). On a GPU that is
available for minutes only, ``--only`` names a few checks at a time, and runs resume where they ended.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PHASES = "memory,floor,speed,energy"
SUITES = {"mlp": "128,512", "resnet20": "128,512", "resnet50": "64,256", "vit_b_16": "64,128"}
"""Suites whose speed is measured, with the batch sizes of ``--quick``; without it they are the suite's own."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the checklist; return 1 if anything on it failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", help="cifar10 or folder:DIR, to train resnet50 on; nothing is trained without it")
    parser.add_argument("--quick", action="store_true", help="one process and 3 s an arm, few batch sizes and images")
    parser.add_argument("--only", help="checks, by the first column of the table (default: all)")
    options = parser.parse_args(words)
    options.out = options.out.resolve()  # the commands run in the repository's folder
    known = checks(options)
    wanted = [name.strip() for name in options.only.split(",")] if options.only else list(known)
    if unknown := [name for name in wanted if name not in known]:
        parser.error(f"there is no check {', '.join(unknown)}; there are {', '.join(known)}")
    options.out.mkdir(parents=True, exist_ok=True)
    rows = [run(name, command, options.out) for name, command in known.items() if name in wanted]
    for report in sorted((ROOT / "reports").glob("*")):
        if (options.out / report.name).is_dir():
            shutil.copytree(report, options.out / f"{report.name}-report", dirs_exist_ok=True)
    print(f"\n{'check':<20} {'result':<8} {'time':>7}  last line")
    for name, code, seconds, last in rows:
        print(f"{name:<20} {'pass' if code == 0 else f'exit {code}':<8} {seconds:>5.0f} s  {last}")
    return int(any(code for _, code, _, _ in rows))


def checks(options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the command of each check, in their order."""
    depth = ["--quick"] if options.quick else []
    bench = [sys.executable, "run_bench.py"]
    commands = {
        "tests": [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/gpu"],
        "doctor": [*bench, "doctor", "--gpus", "0", "--out", str(options.out / "doctor")],
        "estimator": [sys.executable, "perf/estimator.py", "--repeats", "10" if options.quick else "40"],
    }
    for suite, sizes in SUITES.items():
        sizes_asked = ["--quick", "--batch-sizes", sizes] if options.quick else []
        command = [*bench, "--suite", suite, "--gpus", "0", "--phases", PHASES, *sizes_asked]
        commands[f"{suite} speed"] = [*command, "--resume", str(options.out / f"{suite}-speed")]
    brief = [*bench, "--gpus", "0", "--quick", "--suite"]
    more = ["--data", options.data] if options.data else []
    commands["ladder"] = [*brief, "vit_b_16", "--ladder", *more, "--resume", str(options.out / "ladder")]
    largest = [*brief, "resnet50", "--batch-sizes", "128,max"]
    commands["largest batch"] = [*largest, "--resume", str(options.out / "largest")]
    techniques = [*brief, "resnet50", "--techniques", "channels-last,fused-optimizer,cuda-graphs"]
    commands["techniques"] = [*techniques, "--resume", str(options.out / "techniques")]
    commands["overhead"] = [sys.executable, "perf/overhead.py", "--device", "cuda", *depth]
    peers = [sys.executable, "perf/peers.py", "--device", "cuda"]
    commands["peers steps"] = [*peers, "--only", "steps", *(["--processes", "2"] if options.quick else [])]
    if options.data and options.data.startswith("folder:"):
        few = ["--suites", "resnet20", "--samples", "12800", "--rounds", "2"] if options.quick else []
        commands["peers epochs"] = [*peers, "--only", "epochs,pipelines", "--data", options.data, *few]
    if options.data:
        command = [*bench, "--suite", "resnet50", "--gpus", "0", *more, *depth, "--epochs", "5"]
        commands["resnet50 training"] = [*command, "--resume", str(options.out / "resnet50")]
    return commands


def run(name: str, command: list[str], out: Path) -> tuple[str, int, float, str]:
    """Run one command, keep its output, and return its name, exit code, seconds and last line."""
    start = time.monotonic()
    log = out / f"{name.replace(' ', '-')}.log"
    with log.open("w") as file:
        code = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    lines = log.read_text().strip().splitlines()
    return name, code, time.monotonic() - start, lines[-1] if lines else ""


if __name__ == "__main__":
    sys.exit(main())
