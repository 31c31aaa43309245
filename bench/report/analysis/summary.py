"""Trials to one row for each precision of a cell: memory, speed and training side by side."""

from __future__ import annotations

import pandas as pd

from bench.report.analysis.speed import KEY, details, speeds, status_of
from bench.report.analysis.training import trainings
from bench.report.reading.labels import subjects
from bench.report.reading.load import CELL, SUBJECT
from bench.results.records import MEASURED
from bench.spec.precisions import BASELINE, precision_rank

IEEE_ERROR = 3e-5
"""An fp32 matrix product that errs by more than this was not computed in IEEE fp32."""
RESIDENT_RESOLUTION = 5 * 2**20
"""Bytes by which the resident peaks of two processes of one kind differ anyway: less is not told on a CPU."""
ENERGY_FIGURES = ["energy_j_per_step", "energy_net_j_per_step", "mean_power_w", "idle_power_w"]
ROUNDED = ("tf32", "bf16")
"""Settings of the fp32 switches under which the factors are rounded first."""


def summarise(trials: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each precision of each cell, ordered as tables show them.

    Beside the columns of ``KEY`` it has those of ``speeds``, ``details`` and ``trainings``, ``memory_status``,
    ``memory_bytes``, ``all_devices_bytes`` (the sum over devices that train together), ``memory_change`` (a share of
    fp32's, negative is less), ``matmul_error`` and ``ieee`` (whether fp32's products were IEEE; None where it was not
    probed), ``lost_speed`` and ``lost_train`` (how many trials did not count), ``numerics_status`` and
    ``inference_status``, and the names of ``labels.subjects``.
    """
    arms = pd.DataFrame(index=pd.MultiIndex.from_frame(trials[KEY].drop_duplicates()))
    table = arms.join([_memories(trials), speeds(trials), details(trials), energies(trials), trainings(trials)])
    table["matmul_error"] = trials.groupby(KEY, sort=False)["matmul_error"].max()
    lost = trials[~trials["status"].isin(MEASURED)]
    for phase in ("numerics", "inference"):
        rows = trials[trials["phase"] == phase]
        table[f"{phase}_status"] = status_of(rows, rows["status"].isin(MEASURED))
    for phase in ("speed", "train"):
        table[f"lost_{phase}"] = lost[lost["phase"] == phase].groupby(KEY, sort=False).size()
    table = table.reset_index().merge(subjects(trials), on=SUBJECT, how="left")
    table["ieee"] = _ieee(trials, table)
    baselines = table.loc[table["precision"] == BASELINE, [*CELL, "memory_bytes"]]
    fp32 = table[CELL].merge(baselines, on=CELL, how="left")["memory_bytes"]
    change = memory_change(table["memory_bytes"], fp32, table["device_kind"])
    table["memory_change"] = change.where(table["precision"] != BASELINE)
    table["rank"] = table["precision"].map({name: precision_rank(name) for name in table["precision"].unique()})
    order = ["suite", "parameters", "techniques", "data", "architecture", "device", "run", "placement"]
    order += ["batch_size", "rank"]
    return table.sort_values(order, kind="stable", ignore_index=True).copy()  # its columns together: taken at once


def energies(trials: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each arm of each cell whose energy was tried, indexed by ``KEY``.

    ``energy_j_per_step`` is gross. ``energy_change`` is its change as a share of fp32's, negative is less; empty for
    fp32, and where the two were read from different sources. ``energy_status`` is the trial's word.
    """
    rows = trials[trials["phase"] == "energy"]
    usable = rows["status"].isin(MEASURED) & rows["energy_j_per_step"].gt(0)
    table = status_of(rows, usable).to_frame("energy_status")
    last = rows[usable].groupby(KEY, sort=False)[["energy_source", *ENERGY_FIGURES]].last()
    table = table.join(last)
    flat = table.reset_index()
    fp32 = flat.loc[flat["precision"] == BASELINE, [*CELL, "energy_source", "energy_j_per_step"]]
    baseline = flat[[*CELL, "energy_source"]].merge(fp32, on=[*CELL, "energy_source"], how="left")["energy_j_per_step"]
    change = flat["energy_j_per_step"] / baseline - 1
    table["energy_change"] = change.where(flat["precision"] != BASELINE).to_numpy()
    return table.astype(dict.fromkeys([*ENERGY_FIGURES, "energy_change"], float))


def memory_change(peak: pd.Series, fp32: pd.Series, kind: pd.Series) -> pd.Series:
    """Return each peak's change as a share of fp32's, in bytes both; NaN where the two are not told apart."""
    return (peak / fp32.where(fp32 > 0) - 1).where(told_apart(kind, peak, fp32))


def told_apart(kinds: pd.Series, one: pd.Series, other: pd.Series) -> pd.Series:
    """Say of which rows two steady peaks, in bytes, differ by more than two processes on such a device do anyway."""
    return (kinds != "cpu") | ((one - other).abs() >= RESIDENT_RESOLUTION)


def _memories(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the steady peak: allocated on a GPU, resident on a CPU; of several devices the largest's, and the sum."""
    rows = trials[trials["phase"] == "memory"]
    peak = rows["peak_allocated_bytes"].fillna(rows["peak_resident_bytes"])
    usable = rows["status"].isin(MEASURED) & peak.notna()
    table = status_of(rows, usable).to_frame("memory_status")
    figures = rows[[*KEY, "all_devices_bytes"]].assign(peak=peak)[usable].groupby(KEY, sort=False)
    table["memory_bytes"], table["all_devices_bytes"] = figures["peak"].max(), figures["all_devices_bytes"].max()
    return table


def _ieee(trials: pd.DataFrame, table: pd.DataFrame) -> pd.Series:
    """Say for each row whether its subject's fp32 was IEEE fp32, as read back and as probed."""
    fp32 = trials[trials["precision"] == BASELINE]
    rounded = fp32["fp32_matmul"].isin(ROUNDED) | fp32["fp32_conv"].isin(ROUNDED) | (fp32["matmul_error"] > IEEE_ERROR)
    probed = (fp32["fp32_matmul"] != "") | fp32["matmul_error"].notna()
    said = (~rounded[probed]).groupby([fp32.loc[probed, name] for name in SUBJECT], sort=False).all()
    found = table[SUBJECT].merge(said.rename("ieee").reset_index(), on=SUBJECT, how="left")["ieee"]
    return found.astype(object).where(found.notna(), None)
