"""The table of energy: what a step of each precision draws."""

from __future__ import annotations

import pandas as pd

from bench.phases.energy import METRICS
from bench.report.format import ratio, records
from bench.report.parts import PhaseReport
from bench.report.tables.table import (
    ARM_COLUMNS,
    EACH_RECIPE,
    Entry,
    Row,
    Table,
    make_table,
    number_column,
    optional_columns,
    over_fp32,
    text_column,
)
from bench.spec.precisions import BASELINE

ENERGY, ALONE = METRICS
ABOUT = (
    "Energy/step is what the board draws for a step of continuous training, idle draw included; "
    "above idle is without it. Samples/J rests on energy/step. Source: counter is the GPU's own "
    "energy counter, power the integral of its power readings; the two are not compared with each "
    "other. One window of steps was measured for each precision, so there is no interval. Step "
    "alone and speedup alone are of this window, in which no meter is read."
)


def _energy_ratio(row: Row) -> str:
    return "baseline" if row["precision"] == BASELINE else ratio(1 + row[ENERGY.change])


def energy(rows: pd.DataFrame) -> Table | None:
    """Return what a step of each precision draws, of rows of the summary."""
    columns = [
        *ARM_COLUMNS,
        text_column("source", "energy_source"),
        number_column("energy/step (J)", "energy_j_per_step", status="energy_status"),
        number_column("above idle (J)", "energy_net_j_per_step"),
        number_column("samples/J", lambda row: row["batch_size"] / row["energy_j_per_step"]),
        number_column(
            "step alone (ms)", lambda row: 1e3 * row["energy_window_s"] / row["energy_steps"]
        ),
        *optional_columns(
            number_column("speedup alone", lambda row: over_fp32(row, *ALONE.changes))
        ),
        number_column("mean power (W)", "mean_power_w", 3),
        number_column("idle power (W)", "idle_power_w", 3),
        number_column("energy ÷ fp32", _energy_ratio),
    ]
    return make_table("Energy", records(rows[rows["energy_status"].notna()]), columns, ABOUT)


REPORT = PhaseReport(tables=(Entry(54, EACH_RECIPE, lambda material: [energy(material.rows)]),))
