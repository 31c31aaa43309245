#!/usr/bin/env python3
"""Everything that only a machine with a GPU can check, in one command with a short table at its end.

    python perf/gpu_checklist.py OUT [--data folder:DIR] [--quick]

Writes the tests' log and, for each suite, a run with its report into OUT (two folders deep at most).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PHASES = "memory,floor,speed,energy"
SUITES = ("mlp", "resnet20", "resnet50", "vit_b_16")


def main() -> int:
    """Run the checklist; return 1 if anything on it failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", help="cifar10 or folder:DIR, to train resnet50 on; nothing is trained without it")
    parser.add_argument("--quick", action="store_true", help="one process and 3 s an arm")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    depth = ["--quick"] if given.quick else []
    steps = [("tests", [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/gpu"])]
    steps.append(
        ("doctor", [sys.executable, "run_bench.py", "doctor", "--gpus", "0", "--out", str(given.out / "doctor")])
    )
    estimator = [sys.executable, "perf/estimator.py", "--repeats", "10" if given.quick else "40"]
    steps.append(("estimator", estimator))
    for suite in SUITES:
        command = [sys.executable, "run_bench.py", "--suite", suite, "--gpus", "0", "--phases", PHASES, *depth]
        steps.append((f"{suite} speed", [*command, "--resume", str(given.out / f"{suite}-speed")]))
    base = [sys.executable, "run_bench.py", "--gpus", "0", "--quick", "--suite"]
    more = ["--data", given.data] if given.data else []
    steps.append(("ladder", [*base, "vit_b_16", "--ladder", *more, "--resume", str(given.out / "ladder")]))
    largest = ["resnet50", "--batch-sizes", "128,max", "--resume", str(given.out / "largest")]
    steps.append(("largest batch", [*base, *largest]))
    techniques = ["resnet50", "--techniques", "channels-last,fused-optimizer,cuda-graphs"]
    steps.append(("techniques", [*base, *techniques, "--resume", str(given.out / "techniques")]))
    steps.append(("overhead", [sys.executable, "perf/overhead.py", "--device", "cuda"]))
    if given.data and given.data.startswith("folder:"):
        steps.append(("peers", [sys.executable, "perf/peers.py", "--device", "cuda", "--data", given.data]))
    if given.data:
        command = [sys.executable, "run_bench.py", "--suite", "resnet50", "--gpus", "0", "--data", given.data]
        steps.append(
            ("resnet50 training", [*command, *depth, "--epochs", "5", "--resume", str(given.out / "resnet50")])
        )
    rows = [run(name, command, given.out) for name, command in steps]
    for report in sorted((ROOT / "reports").glob("*")):
        if (given.out / report.name).is_dir():
            shutil.copytree(report, given.out / f"{report.name}-report", dirs_exist_ok=True)
    print(f"\n{'check':<20} {'result':<8} {'time':>7}  last line")
    for name, code, seconds, last in rows:
        print(f"{name:<20} {'pass' if code == 0 else f'exit {code}':<8} {seconds:>5.0f} s  {last}")
    return int(any(code for _, code, _, _ in rows))


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
