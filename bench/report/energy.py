"""Energy of a step: by precision, and against fp32's."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from bench.precision_names import rank
from bench.records import MEASURED
from bench.report.format import UNKNOWN, known, number, ratio
from bench.report.labels import subjects
from bench.report.load import CELL, SUBJECT
from bench.report.rows import records
from bench.report.speed import KEY, status_of
from bench.report.tables import Table
from bench.spec import BASELINE

FIGURES = ["energy_j_per_step", "energy_net_j_per_step", "mean_power_w", "idle_power_w"]
ORDER = ["suite", "parameters", "techniques", "data", "architecture", "device", "run", "placement"]
ORDER += ["batch_size", "rank"]


def energies(trials: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each arm of each cell whose energy was tried, indexed by ``KEY``.

    ``energy_j_per_step`` is gross. ``energy_change`` is its change as a share of fp32's, negative is less; empty for
    fp32, and where the two were read from different sources. ``energy_status`` is the trial's word.
    """
    rows = trials[trials["phase"] == "energy"]
    usable = rows["status"].isin(MEASURED) & rows["energy_j_per_step"].gt(0)
    table = status_of(rows, usable).to_frame("energy_status")
    last = rows[usable].groupby(KEY, sort=False)[["energy_source", *FIGURES]].last()
    table = table.join(last)
    flat = table.reset_index()
    fp32 = flat.loc[flat["precision"] == BASELINE, [*CELL, "energy_source", "energy_j_per_step"]]
    baseline = flat[[*CELL, "energy_source"]].merge(fp32, on=[*CELL, "energy_source"], how="left")["energy_j_per_step"]
    change = flat["energy_j_per_step"] / baseline - 1
    table["energy_change"] = change.where(flat["precision"] != BASELINE).to_numpy()
    return table.astype(dict.fromkeys([*FIGURES, "energy_change"], float))


def energy(trials: pd.DataFrame) -> Table | None:
    """Return what a step of each precision draws, or None where energy was not tried."""
    table = energies(trials)
    if table.empty:
        return None
    rows = table.reset_index().merge(subjects(trials), on=SUBJECT, how="left")
    rows["rank"] = rows["precision"].map(rank)
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
