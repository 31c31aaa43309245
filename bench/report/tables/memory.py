"""Where the memory went: what tensors held at the peak, by kind, and what else takes memory on a GPU."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from bench.report.analysis.summary import energies
from bench.report.reading.labels import subjects
from bench.report.reading.load import SUBJECT
from bench.report.tables.format import UNKNOWN, known, memory_unit, number, ratio, records
from bench.report.tables.tables import Table
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
TOGETHER = {"all_devices_bytes": "sum of peaks"}
ORDER = ["suite", "parameters", "techniques", "data", "architecture", "device", "run", "placement"]
ORDER += ["batch_size", "rank"]
ABOUT = (
    "Peak is the headline: of allocated bytes on a GPU, of resident memory on a CPU. Tensors is the most that a step's "
    "tensors held at once, counted one by one in a step of its own, and the kinds are of that moment and add up to it: "
    "parameters with buffers; gradients; the optimizer's state; activations, which forward keeps for backward, "
    "autocast's 16-bit copies of weights included; temporaries, all else, the batches included. What peak has above "
    "tensors is what libraries take for themselves, and the allocator's rounding and slack."
)
ABOUT_TOGETHER = " Of devices that train together each figure is the largest device's, but for the sum of their peaks."
ABOUT_GPU = " Reserved is what the allocator held, driver what the process takes on the GPU, its context included."


def memory(trials: pd.DataFrame) -> Table | None:
    """Return what memory was used for, by precision, or None where no trial counted it."""
    peak = trials["peak_allocated_bytes"].fillna(trials["peak_resident_bytes"])
    counted = (trials["phase"] == "memory") & trials["status"].isin(MEASURED) & trials["tracked_peak_bytes"].notna()
    if not counted.any():
        return None
    rows = trials.assign(peak=peak)[counted].merge(subjects(trials), on=SUBJECT, how="left")
    rows["rank"] = rows["precision"].map({name: precision_rank(name) for name in rows["precision"].unique()})
    on_a_gpu = rows["peak_allocated_bytes"].notna().any()
    together = rows["all_devices_bytes"].notna().any()
    columns = {"peak": "peak"} | (TOGETHER if together else {}) | KINDS | (ON_A_GPU if on_a_gpu else {})
    unit, size, digits = memory_unit(rows[list(columns)].max().max())
    headers = ["suite", "device", "batch size", "precision", *(f"{word} ({unit})" for word in columns.values())]
    body = [
        [row["workload"], row["where"], f"{row['batch_size']:.0f}", row["precision"]]
        + [f"{row[name] / size:,.{digits}f}" if known(row[name]) else UNKNOWN for name in columns]
        for row in records(rows.sort_values(ORDER, kind="stable"))
    ]
    about = ABOUT + (ABOUT_GPU if on_a_gpu else "") + (ABOUT_TOGETHER if together else "")
    return Table(title="Where the memory went", headers=headers, rows=body, about=about)


# Energy of a step: by precision, and against fp32's.


def energy(trials: pd.DataFrame) -> Table | None:
    """Return what a step of each precision draws, or None where energy was not tried."""
    table = energies(trials)
    if table.empty:
        return None
    rows = table.reset_index().merge(subjects(trials), on=SUBJECT, how="left")
    rows["rank"] = rows["precision"].map(precision_rank)
    headers = ["suite", "device", "batch size", "precision", "source", "energy/step (J)", "above idle (J)"]
    headers += ["samples/J", "mean power (W)", "idle power (W)", "energy ÷ fp32"]
    body = [_row(row) for row in records(rows.sort_values(ORDER, kind="stable"))]
    about = (
        "What the board draws for a step of continuous training, gross, and less what it draws idle; samples/J is of "
        "the gross figure. Counter is the GPU's own energy counter, power the integral of its power readings; the two "
        "are not compared with each other. One window of steps each, so there is no interval."
    )
    return Table(title="Energy", headers=headers, rows=body, about=about)


def _row(row: Mapping[Hashable, Any]) -> list[str]:
    joules = row["energy_j_per_step"]
    told = number(joules) if row["energy_status"] in MEASURED else str(row["energy_status"])
    versus = "baseline" if row["precision"] == BASELINE and known(joules) else ratio(1 + row["energy_change"])
    return [
        row["workload"],
        row["where"],
        f"{row['batch_size']:.0f}",
        row["precision"],
        row["energy_source"] if known(row["energy_source"]) else UNKNOWN,
        told,
        number(row["energy_net_j_per_step"]),
        number(row["batch_size"] / joules),
        number(row["mean_power_w"], 3),
        number(row["idle_power_w"], 3),
        versus,
    ]
