#!/usr/bin/env python3
"""Compare the harness's training step with the same step in a hand-written loop of about 20 lines.

    python perf/overhead.py [--device cpu|cuda] [--precisions fp32,amp-bf16] [--quick]

mlp at width 64 (steps of tenths of a millisecond, where overhead shows) and at its recipe's size,
and resnet20. Each loop trains its copy of the model from the same weights on the same batches, in
the harness's ABBA rounds, in eight fresh processes; in every other process the hand-written loop is
built first. The ratio is the harness's time over the other loop's: 1.005 at most. A precision that
a CPU emulates is left out unless ``--precisions`` names it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.launch.local import LocalLauncher
from perf import arms, outcome

MOST = 1.005
PROCESSES = 8
TIMED = "perf.arms:over_by_hand"


def cases(kind: str, *, quick: bool) -> list[tuple[str, str, int, dict[str, object]]]:
    """Return label, suite, batch size and parameters of each case."""
    recipe, batch = (512, 128) if kind == "cuda" else (128, 16)
    compared: list[tuple[str, str, int, dict[str, object]]] = [
        ("mlp, width 64, batch 128", "mlp", 128, {"width": 64}),
        (f"mlp, default width, batch {recipe}", "mlp", recipe, {}),
        (f"resnet20, batch {batch}", "resnet20", batch, {}),
    ]
    return compared[:1] if quick else compared


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precisions", help="of fp32, tf32 and amp-bf16 (default: fp32,amp-bf16)")
    parser.add_argument(
        "--budget",
        type=float,
        help="seconds an arm, in all its processes (default: 24; --quick: 2)",
    )
    parser.add_argument("--quick", action="store_true", help="only the smallest case, briefly")
    options = parser.parse_args()
    launcher, outcomes, notes = LocalLauncher(), [], list[str]()
    processes, budget_s = (
        (2, options.budget or 2.0) if options.quick else (PROCESSES, options.budget or 24.0)
    )
    for precision in arms.choose_precisions(
        options.precisions, arms.survey(launcher, options.device), notes
    ):
        for label, suite, batch_size, parameters in cases(
            torch.device(options.device).type, quick=options.quick
        ):
            comparison = arms.Comparison(
                suite=suite,
                parameters=parameters,
                precision=precision,
                device=options.device,
                batch_size=batch_size,
                budget_s=budget_s / processes,
            )
            ratio = arms.over_processes(launcher, TIMED, comparison, processes)[arms.HARNESS]
            name = f"{label}, {precision}"
            outcomes.append(outcome.Outcome(name=name, interval=ratio, unit="×", most=MOST))
    return outcome.report("The harness's step over a hand-written one", outcomes, notes)


if __name__ == "__main__":
    sys.exit(main())
