#!/usr/bin/env python3
"""Measure how right the speedups at a shared clock and of each arm alone are, under a simulated power governor.

Two arms of known speedup run on a simulated clock that falls above a power cap, through the measuring code itself:
warm-up, ABBA rounds in blocks of 10 ms with readings of the clock, then each arm alone. Every turn of an arm has an
error of 0.3 %.

    python perf/sustained.py [--runs 1000]
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measure.sustained import APART
from tests.measure.simulated import governed, sustained

CASES = (
    *((tau_s, (0.8, 1.3)) for tau_s in (0.5, 2.0, 5.0, 10.0, 20.0)),
    *((tau_s, (1.1, 1.3)) for tau_s in (10.0, 20.0)),
    (0.5, (0.7, 0.95)),
)
"""Time constants of the governor, and the powers of fp32 and of the other arm over the cap."""
NEAR = 0.007


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    print("| τ (s) | powers | true | shared | flagged | alone | settled | within 0.7 % | interval holds the truth |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for tau_s, powers in CASES:
        true = sustained(powers)
        results = [governed(seed, tau_s, powers) for seed in range(runs)]
        shared = np.array([result.shared for result in results])
        settled = [result.alone for result in results if not result.unsettled]
        alone = np.array([interval.center for interval in settled])
        cells = [
            f"{tau_s:g}",
            f"{powers[0]:g} and {powers[1]:g}",
            f"{true:.3f}",
            f"{shared.mean():.3f} ± {1.96 * shared.std():.3f}",
        ]
        cells += [_share([result.apart > APART for result in results])]
        cells += [f"{alone.mean():.3f}" if len(alone) else "–", _share([not result.unsettled for result in results])]
        cells += [_share(np.abs(np.log(alone / true)) <= NEAR) if len(alone) else "–"]
        cells += [_share([interval.low <= true <= interval.high for interval in settled])]
        print("| " + " | ".join(cells) + " |", flush=True)


def _share(values: object) -> str:
    share = float(np.mean(values)) if len(values) else math.nan
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


if __name__ == "__main__":
    main()
