#!/usr/bin/env python3
"""Check that the tests notice single changes in code that runs only with a GPU.

    python perf/gpu_mutants.py [--seed 19] [--count 24] [--not-of SEED...]

``gpu_mutants.json`` lists changes that were written before any test was read: a dropped synchronization, GPU 0 instead
of the process's GPU, a peak that is not reset. The script draws some at random and applies each to a copy of the
checkout. There it runs the nearest tests until one fails: first those without a GPU, then those on simulated GPUs
(which must be buildable: tests/simgpu/README.md). A change whose code no longer exists is named and not counted.

Prints a line for each change with the test that noticed it, and the number of noticed changes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHANGES = ROOT / "perf" / "gpu_mutants.json"
QUICK = "not slow and not gpu and not simgpu and not timing"
NEAR = {
    "devices": ["tests/devices", "tests/worker/test_failures.py", "tests/measure/test_disturbance.py"],
    "measure": ["tests/measure", "tests/phases"],
    "phases": ["tests/phases"],
    "training": ["tests/training", "tests/phases"],
    "worker": ["tests/worker", "tests/training", "tests/launch"],
}
"""The quick tests nearest to each package of bench/."""
LIMIT_S = 1800
"""Tests that take longer hang; that counts as noticed, too."""


def stages(change: dict[str, str]) -> list[list[str]]:
    """Return the commands that run tests on a change, the nearest first."""
    near = [folder for folder in NEAR[change["file"].split("/")[1]] if (ROOT / folder).exists()]
    on_gpu = ["-m", "tests.simgpu", sys.executable, "-m", "pytest", "-q", "-x", "-m", "gpu or simgpu"]
    return [["-m", "pytest", "-q", "-x", "-m", QUICK, *near], [*on_gpu, *change["nearest"].split("|")]]


def first_failure(words: list[str], copy: Path) -> str | None:
    """Run tests; return the first that fails, None if none does.

    Raises:
        RuntimeError: they did not run, for example because simulated GPUs cannot be built.
    """
    variables = {**os.environ, "SIM_SHM": f"/dev/shm/simgpu.{os.getpid()}"}  # a separate simulated machine
    command = [sys.executable, *words]
    try:
        done = subprocess.run(
            command, cwd=copy, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "the tests hang"
    if done.returncode in (0, 5):  # 5: none was chosen
        return None
    if failed := re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE):
        return failed[1]
    raise RuntimeError(f"{' '.join(words)} did not run: {(done.stdout + done.stderr)[-500:]}")


def noticed_by(change: dict[str, str], copy: Path) -> str | None:
    """Apply a change and return the first test that fails, and passes without the change; None if there is none."""
    path = copy / change["file"]
    text = path.read_text()
    for words in stages(change):
        path.write_text(text.replace(change["old"], change["new"]))
        try:
            failed = first_failure(words, copy)
        finally:
            path.write_text(text)
        if failed is not None:
            alone = ["-m", "tests.simgpu", sys.executable] if "tests.simgpu" in words else []
            again = [*alone, "-m", "pytest", "-q", "-m", "", failed.partition("[")[0]]
            if failed == "the tests hang" or first_failure(again, copy) is None:
                return failed
            print(f"{failed} fails without a change too", flush=True)
    return None


def draw(numbers: list[int], seed: int, count: int) -> list[int]:
    """Return some of the numbers, at random."""
    return random.Random(seed).sample(numbers, count)


def main() -> int:
    """Draw changes and print the tests that notice them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=19)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--not-of", type=int, nargs="*", default=[], help="seeds whose draws are left out of this one")
    options = parser.parse_args()
    changes = {change["n"]: change for change in json.loads(CHANGES.read_text())}
    left = set(changes)
    for seed in options.not_of:
        left -= set(draw(sorted(left), seed, options.count))
    if options.count > len(left):
        parser.error(f"there are {len(left)} changes to draw from")
    drawn = sorted(draw(sorted(left), options.seed, options.count))
    noticed = counted = 0
    with tempfile.TemporaryDirectory(prefix="ampmeter-mutants-") as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache"))
        for number in drawn:
            change = changes[number]
            if (copy / change["file"]).read_text().count(change["old"]) != 1:
                print(f"{number}: {change['what']}: no longer applies", flush=True)
                continue
            begun = time.monotonic()
            test = noticed_by(change, copy)
            counted, noticed = counted + 1, noticed + (test is not None)
            took_s = time.monotonic() - begun
            print(f"{number}: {change['what']}: {test or 'NOT NOTICED'} ({took_s:.0f} s)", flush=True)
    print(f"{noticed} of {counted} were noticed")
    return int(noticed < counted)


if __name__ == "__main__":
    sys.exit(main())
