"""Behind the figures: what ran, how near the device's limit, and how it was timed."""

from __future__ import annotations

import pandas as pd

from bench.report.analysis.speed import KEY
from bench.report.tables.format import UNKNOWN, change, known, number, ratio, records
from bench.report.tables.tables import Table, without_empty
from bench.results.records import MEASURED

FIGURES = ["flops_per_step", "tflops", "peak_tflops", "pct_of_peak", "host_ratio", "step_p50_ms", "step_p95_ms"]
FIGURES += ["switch_warmup_steps", "block_steps", "switch_transient_pct", "long_block_pct", "foreign_load_pct"]
COUNTS = ["rounds", "discarded_rounds", "outlier_rounds"]


def details(trials: pd.DataFrame) -> pd.DataFrame:
    """Return how each arm of each cell was timed, indexed by ``KEY``.

    Figures are medians over processes, counts are summed over them, and ``compute_dtypes`` is the first one's.
    """
    rows = trials[(trials["phase"] == "speed") & trials["status"].isin((*MEASURED, "invalid"))]
    groups = rows.groupby(KEY, sort=False)
    table = groups[FIGURES].median().join(groups[COUNTS].sum())
    table["unsteady"] = rows["steady"].eq("no").groupby([rows[name] for name in KEY], sort=False).sum()
    return table.join(groups["compute_dtypes"].first())


def what_ran(rows: pd.DataFrame) -> Table | None:
    """Return what one workload's steps computed in, and how near they come to the device's own limit."""
    found = rows[rows["flops_per_step"].notna() | rows["peak_tflops"].notna()]
    if found.empty:
        return None
    headers = ["device", "batch size", "precision", "computed in", "GFLOP/step", "TFLOP/s", "ceiling (TFLOP/s)"]
    headers += ["share of ceiling (%)", "host/GPU time"]
    body = [
        [
            row["where"],
            f"{row['batch_size']:.0f}",
            row["precision"],
            row["compute_dtypes"] or UNKNOWN,
            number(row["flops_per_step"] / 1e9),
            number(row["tflops"], 3),
            number(row["peak_tflops"], 3),
            number(row["pct_of_peak"], 2),
            number(row["host_ratio"], 2),
        ]
        for row in records(found)
    ]
    about = (
        "The types that matrix products and convolutions computed in, seen in one step outside the timing, with "
        "their shares of its FLOPs. The ceiling is this device's own rate of large matrix products at that "
        "precision, measured in the same process; more than 100 % of it means that it was measured too low, at small "
        "products or beside other programs. Host over GPU time near 1 means that launching kernels limits."
    )
    return without_empty(Table(title="What ran", headers=headers, rows=body, about=about), 3)


def compiling(trials: pd.DataFrame) -> Table | None:
    """Return what torch.compile took for each arm of one workload, median over processes; None without it.

    Args:
        trials: the workload's trials, each with ``where``, the name of its device.
    """
    rows = trials[trials["compile_s"].notna() & (trials["phase"] != "inference")]  # which compiles no backward pass
    if rows.empty:
        return None
    found = rows.groupby([*KEY, "where"], sort=False)["compile_s"].agg(["median", "size"]).reset_index()
    headers = ["device", "batch size", "precision", "compiling (s)", "processes"]
    body = [
        [row["where"], f"{row['batch_size']:.0f}", row["precision"], number(row["median"], 3), f"{row['size']:.0f}"]
        for row in records(found)
    ]
    about = (
        "What torch.compile took before the first ordinary step, from an empty cache, in forward and backward alone; "
        "it is in no other time. A training pays for it once."
    )
    return Table(title="Compiling", headers=headers, rows=body, about=about)


def how_timed(rows: pd.DataFrame, bootstraps: pd.Series) -> Table | None:
    """Return how one workload's blocks were cut and what disturbed them.

    Args:
        rows: the workload's rows of the summary.
        bootstraps: the bootstrap's intervals by ``KEY``.
    """
    found = rows[rows["block_steps"].notna()]
    if found.empty:
        return None
    headers = ["device", "batch size", "precision", "quads", "void", "bursts", "steps/block", "settling"]
    headers += ["first step after switch", "blocks 4× as long", "p50 (ms)", "p95 (ms)", "others' load (%)"]
    headers += ["floor (%)", "bootstrap interval"]
    body = []
    for row in records(found):
        second = bootstraps.get(tuple(row[name] for name in KEY))
        body.append(
            [
                row["where"],
                f"{row['batch_size']:.0f}",
                row["precision"],
                *(f"{row[name]:.0f}" for name in COUNTS),
                *(number(row[name], 2) for name in ("block_steps", "switch_warmup_steps")),
                *(change(row[name] / 100) for name in ("switch_transient_pct", "long_block_pct")),
                *(number(row[name], 3) for name in ("step_p50_ms", "step_p95_ms")),
                number(row["foreign_load_pct"], 2),
                f"{100 * row['floor']:.1f}" if known(row["floor"]) else UNKNOWN,
                ratio(second.center, second.low, second.high) if second is not None else UNKNOWN,
            ]
        )
    about = (
        "Counts over all processes, medians of the rest. Void quads were disturbed by something that is named in "
        "blocks.csv; bursts lie far from the others and count. The floor is how far fp32 was from itself; without "
        "one, 1 % is assumed. The bootstrap draws processes and quads anew: a second opinion on the interval."
    )
    return without_empty(Table(title="How it was timed", headers=headers, rows=body, about=about), 3)
