#!/usr/bin/env python3
"""Compare the measured speedup with the speedup predicted from fp32's step and from operators timed alone.

    python perf/prediction.py [--cells mlp:width=512:128,resnet20:64] [--keep FOLDER]

Ten cells (a suite, its settings, a batch size), each explained in a separate run, fp32 against amp-bf16 on this CPU.
Target: 8 of 10 predictions within 20 % of the measured speedup. "From the products alone" leaves out the operators
that follow products, and the casts.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.report.analysis.explanation import PRODUCTS, Explanation, product_ratio
from perf import outcome
from perf.explaining import explain, folder, parse, run_folder, table

CELLS = ("mlp:width=256:64", "mlp:width=512:128", "mlp:width=1024:128", "mlp:width=1024:512")
CELLS += ("resnet20:16", "resnet20:64", "digits:64", "digits:256", "resnet18:8", "vit_b_16:2")
WITHIN, LEAST = 0.20, 0.8


def by_products(explained: Explanation) -> float | None:
    """Return the speedup if only the products' time changed, as much as products timed alone in the arm's type."""
    baseline, rate = explained.baseline, product_ratio(explained.baseline, explained.arm)
    if rate is None:
        return None
    products = sum(baseline.ms[work] for work in PRODUCTS)
    return baseline.profiled_ms / (baseline.profiled_ms - products * (1 - rate))


def main() -> int:
    """Print each cell's prediction and measurement; return 1 if too few predictions are near."""
    options = parse(__doc__, CELLS)
    rows, near = [], 0
    with folder(options.keep) as runs:
        for cell in options.cells:
            explained = explain(cell, run_folder(runs, cell), options.time_budget)
            speedup, predictions = explained.speedup.center, (explained.predicted, by_products(explained))
            errors = [None if value is None else value / speedup - 1 for value in predictions]
            near += errors[0] is not None and abs(errors[0]) <= WITHIN
            shown = ["–" if error is None else f"{100 * error:+.0f} %" for error in errors]
            predicted = "–" if explained.predicted is None else f"{explained.predicted:.3f}"
            rows.append([cell, f"{speedup:.3f}", predicted, *shown])
    print(f"{outcome.machine()}\n")
    print(table(("cell", "measured (×)", "predicted (×)", "off by", "from the products alone, off by"), rows))
    print(f"\nWithin {100 * WITHIN:.0f} %: {near} of {len(rows)}.")
    return int(near < LEAST * len(rows))


if __name__ == "__main__":
    sys.exit(main())
