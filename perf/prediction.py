#!/usr/bin/env python3
"""Whether the speedup that fp32's step and the operators alone let expect is the one that is measured.

    python perf/prediction.py [--cells mlp:width=512:128,resnet20:64] [--keep FOLDER]

Ten cells (a suite, its settings, a batch size), each explained in a run of its own, fp32 against amp-bf16 on this CPU.
Predicted within 20 % of the measured speedup in at least 8 of 10. "From the products alone" leaves out what follows
products, and the casts.
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


def by_products(one: Explanation) -> float | None:
    """Return the speedup if only the products' time changed, as it does alone in the arm's type."""
    rate = product_ratio(one.baseline, one.arm)
    if rate is None:
        return None
    products = sum(one.baseline.ms[work] for work in PRODUCTS)
    return one.baseline.profiled_ms / (one.baseline.profiled_ms - products * (1 - rate))


def main() -> int:
    """Print each cell's prediction beside its measurement; 1 if too few are near."""
    options = parse(__doc__, CELLS)
    rows, near = [], 0
    with folder(options.keep) as runs:
        for cell in options.cells:
            one = explain(cell, run_folder(runs, cell), options.time_budget)
            errors = [
                None if value is None else value / one.speedup.center - 1 for value in (one.predicted, by_products(one))
            ]
            near += errors[0] is not None and abs(errors[0]) <= WITHIN
            shown = ["–" if error is None else f"{100 * error:+.0f} %" for error in errors]
            predicted = "–" if one.predicted is None else f"{one.predicted:.3f}"
            rows.append([cell, f"{one.speedup.center:.3f}", predicted, *shown])
    print(f"{outcome.machine()}\n")
    print(table(("cell", "measured (×)", "predicted (×)", "off by", "from the products alone, off by"), rows))
    print(f"\nWithin {100 * WITHIN:.0f} %: {near} of {len(rows)}.")
    return int(near < LEAST * len(rows))


if __name__ == "__main__":
    sys.exit(main())
