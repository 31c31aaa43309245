"""What ran, how near it came to the device's limit, and how it was timed."""

from __future__ import annotations

import pandas as pd

from bench.report.format import UNKNOWN, change, ratio, records
from bench.report.reading.load import KEY
from bench.report.tables.table import ARM, Row, Table, figures, optional, table, whole, words


def what_ran(rows: pd.DataFrame) -> Table | None:
    """Return what one workload's steps computed in, and how near they come to the device's own limit."""
    columns = [
        *ARM,
        *optional(
            words("computed in", "compute_dtypes"),
            figures("GFLOP/step", "flops_per_step", per=1e9),
            figures("TFLOP/s", "tflops", 3),
            figures("ceiling (TFLOP/s)", "peak_tflops", 3),
            figures("share of ceiling (%)", "pct_of_peak", 2),
            figures("host/GPU time", "host_ratio", 2),
        ),
    ]
    about = (
        "Computed in: the types of matrix products and convolutions, with their shares of a step's FLOPs, recorded in "
        "one step that is not timed. The ceiling is the rate of large matrix products in that precision on this "
        "device, measured in the same process. A share above 100 % means that the ceiling was measured too low: with "
        "small products, or beside other programs. Host/GPU time near 1: launching kernels limits the step."
    )
    found = rows[rows["flops_per_step"].notna() | rows["peak_tflops"].notna()]
    return table("What ran", records(found), columns, about)


def compiling(trials: pd.DataFrame) -> Table | None:
    """Return what torch.compile took for each arm of one workload, median over processes; None without it.

    Args:
        trials: the workload's trials, each with ``where``, the name of its device.
    """
    rows = trials[trials["compile_s"].notna() & (trials["phase"] != "inference")]  # which compiles no backward pass
    found = rows.groupby([*KEY, "where"], sort=False)["compile_s"].agg(["median", "size"]).reset_index()
    columns = [*ARM, figures("compiling (s)", "median", 3), figures("processes", "size", whole)]
    about = (
        "Time that torch.compile took for forward and backward before the first ordinary step, from an empty cache. No "
        "other time includes it. A training pays it once."
    )
    return table("Compiling", records(found), columns, about)


def how_timed(rows: pd.DataFrame, bootstraps: pd.Series) -> Table | None:
    """Return how one workload's steps were timed, and what disturbed them.

    Args:
        rows: the workload's rows of the summary.
        bootstraps: the bootstrap's intervals by ``KEY``.
    """

    def bootstrap(row: Row) -> str:
        interval = bootstraps.get(tuple(row[name] for name in KEY))
        return UNKNOWN if interval is None else ratio(interval.center, interval.low, interval.high)

    columns = [
        *ARM,
        *optional(
            figures("rounds", "rounds", whole),
            figures("discarded", "discarded_rounds", whole),
            figures("outliers", "outlier_rounds", whole),
            figures("steps/block", "block_steps", 2),
            figures("switch warm-up (steps)", "switch_warmup_steps", 2),
            figures("first step after switch", "switch_transient_pct", change, per=100),
            figures("blocks 4× as long", "long_block_pct", change, per=100),
            figures("p50 (ms)", "step_p50_ms", 3),
            figures("p95 (ms)", "step_p95_ms", 3),
            figures("others' load (%)", "foreign_load_pct", 2),
            figures("A/A noise (%)", "floor", lambda share: f"{100 * share:.1f}"),
            figures("bootstrap interval", bootstrap),
        ),
    ]
    about = (
        "Counts are sums over all processes, other figures medians. A discarded ABBA round was disturbed by what "
        "blocks.csv names; an outlier lies far from the other rounds and counts. A/A noise is how far fp32 measured "
        "against itself was from 1; where it was not measured, 1 % is assumed. The bootstrap resamples processes and "
        "rounds: a second estimate of the speedup's interval."
    )
    return table("How it was timed", records(rows[rows["block_steps"].notna()]), columns, about)
