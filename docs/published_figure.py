#!/usr/bin/env python3
"""Draw the README's figure: speedup vs batch size in the literature, drawn as the report does.

    python docs/published_figure.py

It writes docs/bert-speedup-vs-batch-published.svg from results/published. None of its figures was
measured by ampmeter.
"""

from __future__ import annotations

import sys
import tempfile
from math import nan
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.report import published
from bench.report.figures import devices
from bench.report.figures.draw import draw
from bench.spec.metrics import SPEED

ROOT = Path(__file__).resolve().parents[1]
SOURCE, MODEL = "milabench", "bert-base"
NAME = "bert-speedup-vs-batch-published"


def main() -> None:
    """Draw the figure."""
    rows = published.load_published()
    rows = rows[(rows["source"] == SOURCE) & (rows["model"] == MODEL)]
    rows = rows.assign(
        device=rows["gpu"],
        device_kind="cuda",
        value=rows["speedup"],
        low=nan,
        high=nan,
        status="ok",
    )
    figure = devices.against_batch(
        rows,
        SPEED,
        workload=f"{MODEL}, published by {SOURCE}, not measured here",
        name=NAME,
        tints={gpu: f"device-{place}" for place, gpu in enumerate(rows["gpu"].unique())},
    )
    assert figure is not None
    with tempfile.TemporaryDirectory() as folder:
        draw(figure, Path(folder))
        (ROOT / "docs" / f"{NAME}.svg").write_bytes((Path(folder) / f"{NAME}.svg").read_bytes())


if __name__ == "__main__":
    main()
