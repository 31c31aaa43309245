#!/usr/bin/env python3
"""Measure by how much the peak memory of equal trials on this CPU differs, and how often `compare` sees a change.

    python perf/memory_pairs.py [--pairs 200] [--suite mlp] [--set width=512] [--batch 64] [--before CHECKOUT]

Trials of fp32 run one after the other, each in a fresh process, as the memory phase makes them; two neighbours are a
pair. With another checkout the two take turns, twenty trials at a time, and both are judged by this one's resolution.

1. Pairs that are judged REGRESSED: at most 5 %.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.report.analysis.contrast import Arm, estimate
from bench.report.analysis.judge import IMPROVED, judge
from bench.report.reading.load import KEY
from bench.spec.metrics import MEMORY
from bench.stats import Interval
from perf import outcome, side_by_side

CHUNK = 20
CODE = """
import json, sys
from bench.launch.local import LocalLauncher
from bench.results.records import Device, TrialResult
from bench.spec.techniques import AblationStep
from bench.spec.trial import Cell, DataSource, Placement, SuiteRef, Trial

asked, peaks = json.loads(sys.argv[1]), []
suite = SuiteRef(name=asked["suite"], parameters=tuple((name, value) for name, value in asked["parameters"]))
cell = Cell(
    suite=suite, placement=Placement(name="cpu"), batch_size=asked["batch"], data=DataSource(kind="synthetic")
)
device = Device(placement="cpu", kind="cpu", name="CPU", architecture="CPU")
launcher = LocalLauncher()

def take(message):
    if isinstance(message, TrialResult):
        peaks.append(message.memory.peak_resident_bytes)

for seed in range(asked["count"]):
    ending = launcher.run(Trial(cell=cell, phase="memory", arms=(AblationStep(precision="fp32"),)), device, take)
    if ending.kind != "done":
        sys.exit(ending.text)
print(json.dumps(peaks))
"""
"""Returns the peaks of a checkout's trials."""


def regressed(old: float, new: float) -> bool:
    """Return whether a change for the worse is seen from one trial to the next."""
    sides = [
        Arm(
            key=("",) * len(KEY),
            values=np.array([peak]),
            replicates=(0,),
            alone=np.array([True]),
            on_cpu=True,
        )
        for peak in (new, old)
    ]
    contrast = estimate(MEMORY, *sides)
    return contrast is not None and judge(contrast, IMPROVED) == IMPROVED[1]


def main() -> int:
    """Print the spread of the trials and the share of pairs with a change, then what was expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    side_by_side.add_option(parser)
    parser.add_argument("--pairs", type=int, default=200, help="pairs of trials (default: 200)")
    parser.add_argument("--suite", default="mlp", help="(default: mlp)")
    parser.add_argument("--set", default="", help="of one of its parameters, a whole number, such as width=512")
    parser.add_argument("--batch", type=int, default=64, help="(default: 64)")
    options = parser.parse_args()
    name, _, value = options.set.partition("=")
    asked = {"suite": options.suite, "parameters": [(name, int(value))] if name else [], "batch": options.batch}
    sides = side_by_side.checkouts(options.before)
    peaks: dict[str, list[float]] = {side: [] for side in sides}
    left = dict.fromkeys(sides, 2 * options.pairs)
    for _, side, checkout in side_by_side.turns(sides, -(-2 * options.pairs // CHUNK)):
        count = min(CHUNK, left[side])
        peaks[side] += side_by_side.call(checkout, CODE, asked | {"count": count})
        left[side] -= count
    outcomes = []
    for side, of_side in peaks.items():
        mib = np.array(of_side) / 2**20
        print(f"{side}: {len(mib)} trials, {mib.min():.1f} to {mib.max():.1f} MiB, median {np.median(mib):.1f}")
        steps = np.abs(mib[1::2] - mib[::2])
        usual = np.percentile(steps, 95)
        print(f"{side}: neighbours differ by at most {usual:.2f} MiB in 95 % of pairs, and by {steps.max():.2f} MiB")
        shares = [100.0 * regressed(*pair) for pair in zip(of_side[::2], of_side[1::2], strict=True)]
        interval = Interval(center=float(np.mean(shares)), low=None, high=None, n=len(shares))
        most = 5.0 if side == "here" else None
        outcomes.append(outcome.Outcome(name=f"{side}: pairs REGRESSED", interval=interval, unit="%", most=most))
    return outcome.report("Memory of equal trials", outcomes)


if __name__ == "__main__":
    raise SystemExit(main())
