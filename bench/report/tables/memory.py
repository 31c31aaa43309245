"""Memory by what it was used for, and energy by precision."""

from __future__ import annotations

import pandas as pd

from bench.report.analysis.summary import energies
from bench.report.format import known, memory_unit, ratio, records
from bench.report.reading.labels import subjects
from bench.report.reading.load import SUBJECT
from bench.report.tables.table import ARM, Row, Table, figures, table, words
from bench.results.records import MEASURED
from bench.spec.precisions import BASELINE, precision_rank

KINDS = {
    "tracked_peak_bytes": "tensors",
    "parameter_bytes": "parameters",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer",
    "activation_bytes": "activations",
    "temporary_bytes": "temporaries",
}
ON_A_GPU = {"first_peak_bytes": "first step", "peak_reserved_bytes": "reserved", "driver_used_bytes": "driver"}
DISTRIBUTED = {"all_devices_bytes": "sum of peaks"}
ORDER = ["suite", "parameters", "techniques", "data", "architecture", "device", "run", "placement"]
ORDER += ["batch_size", "rank"]
SUITE = words("suite", "workload")
ABOUT = (
    "Peak is the figure of the tables above: allocated bytes on a GPU, resident memory on a CPU. Tensors is the most "
    "that a step's tensors held at once, counted tensor by tensor in a step of its own. The kinds are those of that "
    "moment and add up to it: parameters with buffers; gradients; the optimizer's state; activations, which forward "
    "keeps for backward, autocast's 16-bit copies of weights included; temporaries, all else, the batches included. "
    "Peak minus tensors is the memory of libraries and the allocator's rounding and slack."
)
ABOUT_DISTRIBUTED = (
    " Of devices that train together each figure is that of the device with the most, except for the sum of peaks."
)
ABOUT_GPU = " Reserved is what the allocator held; driver is what the process takes on the GPU, its context included."


def memory(trials: pd.DataFrame) -> Table | None:
    """Return what memory was used for, by precision, or None where no trial counted it."""
    peak = trials["peak_allocated_bytes"].fillna(trials["peak_resident_bytes"])
    counted = (trials["phase"] == "memory") & trials["status"].isin(MEASURED) & trials["tracked_peak_bytes"].notna()
    rows = _named(trials.assign(peak=peak)[counted], trials)
    on_a_gpu = rows["peak_allocated_bytes"].notna().any()
    distributed = rows["all_devices_bytes"].notna().any()
    kinds = {"peak": "peak"} | (DISTRIBUTED if distributed else {}) | KINDS | (ON_A_GPU if on_a_gpu else {})
    unit, size, digits = memory_unit(rows[list(kinds)].max().max())
    columns = [
        figures(f"{kind} ({unit})", name, lambda value: f"{value:,.{digits}f}", per=size)
        for name, kind in kinds.items()
    ]
    about = ABOUT + (ABOUT_GPU if on_a_gpu else "") + (ABOUT_DISTRIBUTED if distributed else "")
    return table("Where the memory went", records(rows), [SUITE, *ARM, *columns], about)


def energy(trials: pd.DataFrame) -> Table | None:
    """Return what a step of each precision draws, or None where energy was not tried."""

    def versus_fp32(row: Row) -> str:
        is_baseline = row["precision"] == BASELINE and known(row["energy_j_per_step"])
        return "baseline" if is_baseline else ratio(1 + row["energy_change"])

    columns = [
        SUITE,
        *ARM,
        words("source", "energy_source"),
        figures("energy/step (J)", "energy_j_per_step", status="energy_status"),
        figures("above idle (J)", "energy_net_j_per_step"),
        figures("samples/J", lambda row: row["batch_size"] / row["energy_j_per_step"]),
        figures("mean power (W)", "mean_power_w", 3),
        figures("idle power (W)", "idle_power_w", 3),
        figures("energy ÷ fp32", versus_fp32),
    ]
    about = (
        "Energy/step is what the board draws for a step of continuous training, idle draw included; above idle is "
        "without it. Samples/J rests on energy/step. Source: counter is the GPU's own energy counter, power the "
        "integral of its power readings; the two are not compared with each other. One window of steps was measured "
        "for each precision, so there is no interval."
    )
    return table("Energy", records(_named(energies(trials).reset_index(), trials)), columns, about)


def _named(rows: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the names of their subjects, in the order of the tables."""
    rows = rows.merge(subjects(trials), on=SUBJECT, how="left")
    rows["rank"] = rows["precision"].map({name: precision_rank(name) for name in rows["precision"].unique()})
    return rows.sort_values(ORDER, kind="stable")
