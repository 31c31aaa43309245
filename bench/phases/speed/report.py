"""Speed: tables of how it was measured, of several devices together, and of sweeps."""

from __future__ import annotations

import pandas as pd

from bench.phases.speed import sweeps
from bench.report.analysis.summary import over
from bench.report.format import estimate, records
from bench.report.parts import PhaseReport
from bench.report.reading.labels import placement
from bench.report.tables.table import (
    ARM_COLUMNS,
    BATCH,
    EACH_RECIPE,
    PRECISION,
    Entry,
    Row,
    Table,
    make_table,
    number_column,
    optional_columns,
    text_column,
    whole,
)
from bench.results.columns import listed
from bench.spec.techniques import for_one_device

SWEEPS = "Sweeps"
ABOUT_SCALING = (
    "Throughput of devices that train together over that of one of them alone, in the same run. "
    "Strong scaling keeps the whole batch; weak scaling keeps each device's part of it. "
    "Efficiency is the speedup divided by the number of devices; on a CPU there is none, because "
    "processes share its threads. The interval is Welch's over processes, because the two were "
    "not measured side by side; with one process each there is none."
)


def how_measured(rows: pd.DataFrame) -> Table | None:
    """Return what ran in the steps of one workload, and how it was timed."""
    columns = [
        *ARM_COLUMNS,
        *optional_columns(
            text_column("computed in", "compute_dtypes"),
            text_column("attention by", "attention"),
            number_column("GFLOP/step", "flops_per_step", per=1e9),
            number_column("TFLOP/s", "tflops", 3),
            number_column("host/GPU time", "host_ratio", 2),
            number_column("compiling (s)", "compile_s", 3),
            number_column("rounds", "rounds", whole),
            number_column("steps/block", "block_steps", 2),
            number_column("others' load (%)", "foreign_load_pct", 2),
            number_column("A/A noise (%)", "noise_ratio", 2, per=0.01),
        ),
    ]
    about = (
        "Computed in: the types of matrix products and convolutions, with their shares of the "
        "FLOPs of forward and backward, recorded in one step that is not timed; an optimizer's "
        "products are not the model's. Attention by: the backends of scaled_dot_product_attention "
        "in that step, with their calls. Host/GPU time near 1: launching kernels limits the step. "
        "Compiling: the time of the steps until none compiled, less that of as many ordinary "
        "ones; each arm begins with an empty cache, but the first of a process takes up to a "
        "quarter longer, and 0 is that of one whose graphs another arm of its process had "
        "compiled. Rounds are summed over all processes, the load is the highest, other figures "
        "are medians. A/A noise is how far fp32 measured against itself was from 1; where it was "
        "not measured, 1 % is assumed."
    )
    is_measured = rows["flops_per_step"].notna() | rows["block_steps"].notna()
    return make_table("How it was measured", records(rows[is_measured]), columns, about)


def scaling(rows: pd.DataFrame, summary: pd.DataFrame) -> Table | None:
    """Return how much faster several devices train together than one of them.

    None where that was not measured.

    Args:
        rows: rows of the summary, of one workload.
        summary: all rows of the summary; without ``sync-bn`` and the like, one device is another
            workload.
    """
    timed = records(summary[summary["step_ms"].notna()])
    lines = []
    for row in records(rows[rows["step_ms"].notna()]):
        count = len(listed(row["members"]))
        if count == 1:
            continue
        part = row["batch_size"] / count
        kinds = {row["batch_size"]: "strong", part: f"weak, {part:g} a device"}
        # Of several devices of the same model the first one stands for all.
        singles: dict[float, Row] = {}
        for single in timed:
            if _is_part(single, row):
                singles.setdefault(single["batch_size"], single)
        for batch, kind in kinds.items():
            if batch in singles:
                speedup = over(row, singles[batch])
                efficiency_pct = 100 * speedup.center / count
                line = {"scaling": kind, "one": singles[batch], "over_one": speedup}
                on_cpu = row["device_kind"] == "cpu"
                lines.append(row | line | {"efficiency_pct": None if on_cpu else efficiency_pct})
    columns = [
        text_column("devices", "where"),
        PRECISION,
        BATCH,
        text_column("scaling", "scaling"),
        number_column("throughput (samples/s)", "samples_per_s"),
        text_column("one device", lambda line: placement(line["one"]["placement"])),
        number_column("its throughput", lambda line: line["one"]["samples_per_s"]),
        number_column(
            "speedup over one [95 % interval]",
            lambda line: estimate(line["over_one"]),
            status="speed_status",
        ),
        number_column("efficiency (%)", "efficiency_pct", 3),
    ]
    return make_table("Scaling", lines, columns, ABOUT_SCALING)


def _is_part(single: Row, row: Row) -> bool:
    """Return whether a row is of one of another's devices, measured alike.

    Techniques that mean nothing on one device may differ.
    """
    for name in ("run", "suite", "parameters", "data", "precision"):
        if single[name] != row[name]:
            return False
    if single["placement"] not in listed(row["members"]):
        return False
    techniques = for_one_device(listed(single["techniques"]))
    return techniques == for_one_device(listed(row["techniques"]))


REPORT = PhaseReport(
    tables=(
        Entry(40, SWEEPS, lambda material: sweeps.tables(material.summary, material.runs)),
        Entry(56, EACH_RECIPE, lambda material: [how_measured(material.rows)]),
        Entry(62, EACH_RECIPE, lambda material: [scaling(material.rows, material.summary)]),
    ),
)
