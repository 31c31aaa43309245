#!/usr/bin/env python3
"""Count how often `compare --interleave` finds a planted change, and measure its half-width.

    python perf/interleave.py [--changed 10] [--equal 20] [--real NAME]

A suite's step ends 20 ms after the one before; NEW's lasts 3 % longer, or as long. Each comparison
measures three pairs of runs, of one process each, and of the real suite as many as by default.

1. Planted changes of 3 % that are found (REGRESSED): at least 9 of 10.
2. Equal sides without a change: at least 19 of 20.
3. Half-width of the change of a real suite against itself, after three pairs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STEP_S, PLANTED = 0.020, 0.03
OPTIONS = ("--gpus", "cpu", "--precisions", "fp32", "--phases", "speed")
QUICK = ("--quick", "--time-budget", "2s")
METRONOME = """
import time

from bench.spec import Data, Suite


def suite() -> Suite:
    pace = {{"began": 0.0, "left": 0.0, "until": 0.0}}

    def optimizer(parameters):
        from torch import optim

        class Metronome(optim.SGD):
            # A step ends {step_s} s after the one before should have ended; after a pause, after
            # it began.
            def step(self, closure=None):
                super().step(closure)
                paused = pace["began"] - pace["left"] > 0.0005
                pace["until"] = (pace["began"] if paused else pace["until"]) + {step_s}
                time.sleep(max(0.0, pace["until"] - time.perf_counter() - 0.002))
                while time.perf_counter() < pace["until"]:
                    pass
                pace["left"] = time.perf_counter()

        return Metronome(parameters, lr=0.01)

    def model(data):
        from torch import nn

        class Begun(nn.Linear):
            def forward(self, inputs):
                pace["began"] = time.perf_counter()
                return super().forward(inputs)

        return Begun(1, 1)

    return Suite(
        name="metronome",
        title="Steps of a known time",
        data=Data(input_shape=(1,), target_shape=(1,)),
        model=model,
        optimizer=optimizer,
        batch_size=1,
    )
"""


def compare(old: str, new: str, folder: Path, *words: str) -> dict[str, Any]:
    """Interleave two sides; return the change of the step's time."""
    command = [
        sys.executable,
        str(ROOT / "run_bench.py"),
        "compare",
        old,
        new,
        "--interleave",
        str(folder),
        "--json",
    ]
    done = subprocess.run(
        [*command, "--", *OPTIONS, *words], stdout=-1, stderr=-3, check=True, cwd=folder.parent
    )
    (row,) = json.loads(done.stdout)["rows"]
    change: dict[str, Any] = row["speed"]
    return change


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--changed", type=int, default=10, metavar="N", help="comparisons with a planted change"
    )
    parser.add_argument("--equal", type=int, default=20, metavar="N", help="comparisons without")
    parser.add_argument(
        "--real", default="mlp", metavar="NAME", help="the real suite; none if empty"
    )
    options = parser.parse_args()
    found: dict[float, list[bool]] = {PLANTED: [], 0.0: []}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for planted in [PLANTED] * options.changed + [0.0] * options.equal:
            number = sum(map(len, found.values()))
            for side, step_s in (("old", STEP_S), ("new", STEP_S * (1 + planted))):
                (folder / side).mkdir(exist_ok=True)
                (folder / side / "metronome.py").write_text(METRONOME.format(step_s=step_s))
            sides = [str(folder / side / "metronome.py") for side in ("old", "new")]
            change = compare(*sides, folder / str(number), *QUICK)
            found[planted].append(change["verdict"] in ("REGRESSED", "IMPROVED"))
            print(f"{planted:.0%} planted: {change}", flush=True)
        if options.real:
            real = compare(str(ROOT), str(ROOT), folder / "real", "--suite", options.real)
            print(f"{options.real} against itself: {real}")
    missed = False
    for planted, target in ((PLANTED, "at least 9 of 10"), (0.0, "at most 1 of 20")):
        changes, count = sum(found[planted]), len(found[planted])
        print(f"{planted:.0%} planted: a change in {changes} of {count} (target: {target})")
        missed |= changes < 0.9 * count if planted else changes > 0.05 * count
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
