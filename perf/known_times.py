#!/usr/bin/env python3
"""Measure a speedup that is known, 1.5, by the command line's defaults: undisturbed, with a transient, with drift.

    python perf/known_times.py

The suite is that of ``tests/end_to_end/test_known_time.py``: a step takes 3 ms, or 2 ms under autocast. Run it on an
otherwise idle machine.

1. Distance from 1.5: at most 0.5 %.
2. Duration of the whole command: about 15 s.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import stats
from perf import outcome
from tests.end_to_end.test_known_time import SLEEPER

ROOT = Path(__file__).resolve().parents[1]
CASES = ("nothing", "transient", "drift")
WORDS = ["--suite", "sleeper.py", "--gpus", "cpu", "--precisions", "fp32,amp-bf16", "--phases", "speed"]


def main() -> int:
    """Print the distances and the durations."""
    program = [sys.executable, str(ROOT / "run_bench.py")]
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sleeper.py").write_text(SLEEPER)
        for case in CASES:
            start = time.perf_counter()
            words = [*WORDS, "--set", f"disturbed={case}", "--out", case]
            subprocess.run([*program, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
            wall_s = time.perf_counter() - start
            report = subprocess.run(
                [*program, "report", case, "--json"], cwd=folder, check=True, stdout=subprocess.PIPE
            )
            (row,) = (row for row in json.loads(report.stdout)["results"] if row["precision"] == "amp-bf16")
            away = stats.Interval(center=100 * abs(row["speedup"] / 1.5 - 1), low=None, high=None, n=1)
            took = stats.Interval(center=wall_s, low=None, high=None, n=1)
            outcomes.append(outcome.Outcome(name=f"{case}: distance from 1.5", interval=away, unit="%", most=0.5))
            outcomes.append(outcome.Outcome(name=f"{case}: duration", interval=took, unit="s"))
    return outcome.report("Known times", outcomes)


if __name__ == "__main__":
    raise SystemExit(main())
