#!/usr/bin/env python3
"""What the harness's training step costs beside the same step in a loop of about 20 lines written by hand.

    python perf/overhead.py [--device cpu|cuda] [--precisions fp32,amp-bf16] [--quick]

mlp at width 64 (steps of tenths of a millisecond, where overhead shows) and at its recipe's size, and resnet20; both
loops train models of their own from the same weights on the same batches, in quads of the harness's own kind, in eight
fresh processes, in every other of which the one by hand is built first. The ratio is the harness's time over the
other's: 1.005 at most. A precision that a CPU emulates is left out unless ``--precisions`` names it.

``--references`` times, in the same processes, two more arms at width 64, which have no target: the loop by hand once
more, which tells what chance does, and in a loop as the harness's, with its step in a function and nothing else in it.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.launch.local import LocalLauncher
from bench.stats import process_interval
from perf import arms, outcome

MOST = 1.005
PROCESSES = 8
TIMED = "perf.arms:over_by_hand"
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
    parser.add_argument("--budget", type=float, help="seconds an arm, in all its processes (default: 24; --quick: 2)")
    parser.add_argument("--quick", action="store_true", help="the smallest alone, briefly")
    parser.add_argument("--references", action="store_true", help="the loop by hand against itself, too")
    given = parser.parse_args()
    device = torch.device(given.device)
    launcher = LocalLauncher()
    known = launcher.survey((("cpu" if device.type == "cpu" else str(device.index or 0)),)).devices[0]
    processes, budget_s = (2, given.budget or 2.0) if given.quick else (PROCESSES, given.budget or 24.0)
    outcomes, notes = [], []
    for precision in given.precisions.split(",") if given.precisions else DEFAULT:
        why = None if given.precisions else arms.why_not(known, precision)
        if why:
            notes.append(f"{precision} is left out: {why}.")
            continue
        for label, name, batch, parameters in cases(device.type, quick=given.quick):
            asked = arms.Question(
                suite=name,
                parameters=parameters,
                precision=precision,
                device=given.device,
                batch_size=batch,
                budget_s=budget_s / processes,
                own_first=True,
                references=given.references and "width" in parameters,
            )
            takes_turns = [replace(asked, own_first=number % 2 == 0) for number in range(processes)]
            logs = [launcher.call(TIMED, one) for one in takes_turns]
            for arm in logs[0]:
                found = process_interval([log[arm] for log in logs]).exp()
                said, most = (label, MOST) if arm == arms.HARNESS else (f"{label}: {arm} ÷ by hand", None)
                outcomes.append(outcome.Outcome(name=f"{said}, {precision}", found=found, most=most, unit="×"))
    return outcome.report("The harness's step over one by hand", outcomes, notes)


if __name__ == "__main__":
    sys.exit(main())
