#!/usr/bin/env python3
"""Draw the README's figure: speedup vs batch size in the literature, as the report draws measured speedups.

    python docs/published_figure.py

It writes docs/bert-speedup-vs-batch-published.svg from results/published. None of its figures was measured by ampmeter.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.report.figures import chart, devices, files
from bench.report.tables import published
from bench.spec.metrics import SPEED
from bench.spec.precisions import BASELINE

ROOT = Path(__file__).resolve().parents[1]
SOURCE, MODEL = "milabench", "bert-base"
NAME = "bert-speedup-vs-batch-published"


def main() -> None:
    """Draw the figure."""
    literature = published.load_published()
    paired = published.pairs(literature[(literature["source"] == SOURCE) & (literature["model"] == MODEL)])
    rows = paired[paired["precision_base"] == BASELINE]
    rows = rows.assign(device=rows["gpu"], value=rows["times"], low=np.nan, high=np.nan, status="ok")
    figure = devices.against_batch(
        rows,
        SPEED,
        workload=f"{MODEL}, published by {SOURCE}, not measured here",
        name=NAME,
        tints={gpu: chart.device(place) for place, gpu in enumerate(rows["device"].unique())},
        over_fp32=True,
    )
    assert figure is not None
    with tempfile.TemporaryDirectory() as folder:
        files.write(figure, Path(folder))
        (ROOT / "docs" / f"{NAME}.svg").write_bytes((Path(folder) / f"{NAME}.svg").read_bytes())


if __name__ == "__main__":
    main()
