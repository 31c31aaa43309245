#!/usr/bin/env python3
"""What the harness's training step costs beside the same step in a loop of about 20 lines written by hand.

    python perf/overhead.py [--device cpu|cuda] [--precisions fp32,amp-bf16] [--quick]

mlp at width 64 (steps of tenths of a millisecond, where overhead shows) and at its recipe's size, and resnet20; both
loops train models of their own from the same weights on the same batches, in quads of the harness's own kind, in one
process. The ratio is the harness's time over the other's: 1.005 at most. A precision that a CPU emulates is left out
unless ``--precisions`` names it.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as bench/launch/local.py does, before torch is imported

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf import arms, outcome

MOST = 1.005
DEFAULT = ("fp32", "amp-bf16")
Case = tuple[str, str, int, dict[str, object]]


def cases(kind: str, *, quick: bool) -> list[Case]:
    """Return label, suite, batch size and parameters of what is compared."""
    found: list[Case] = [("mlp, width 64, batch 128", "mlp", 128, {"width": 64})]
    if quick:
        return found
    recipe = 512 if kind == "cuda" else 128
    batch = 128 if kind == "cuda" else 16
    found.append((f"mlp, its own width, batch {recipe}", "mlp", recipe, {}))
    found.append((f"resnet20, batch {batch}", "resnet20", batch, {}))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precisions", help="of fp32, tf32 and amp-bf16 (default: fp32,amp-bf16)")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds an arm (default: 20; --quick: 2)")
    parser.add_argument("--quick", action="store_true", help="the smallest alone, briefly")
    given = parser.parse_args()
    device = torch.device(given.device)
    known = arms.look(device)
    outcomes, notes = [], []
    for precision in given.precisions.split(",") if given.precisions else DEFAULT:
        why = None if given.precisions else arms.why_not(known, precision)
        if why:
            notes.append(f"{precision} is left out: {why}.")
            continue
        for label, name, batch, parameters in cases(device.type, quick=given.quick):
            suite = arms.open_suite(name, **parameters)
            own = arms.harness(suite, precision, device, batch)
            other = arms.by_hand(suite, precision, device, batch)
            found = arms.step_ratio(own, other, 2.0 if given.quick else given.budget)
            outcomes.append(outcome.Outcome(name=f"{label}, {precision}", found=found, most=MOST, unit="×"))
    return outcome.report("The harness's step over one by hand", outcomes, notes)


if __name__ == "__main__":
    sys.exit(main())
