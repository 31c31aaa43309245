"""The tidy frame of a report, and what each arm measured of a metric.

- A metric is what is compared: its column, its direction, its margin (``bench.spec.metrics``).
- A measurement is one value of a metric, by one arm in one process or with one seed.
- An arm has all measurements of a metric by one precision of one cell.
- A contrast is one arm against another, with an interval (``bench.report.analysis.changes``).
- A verdict is the words for contrasts, which depend on the question
  (``bench.report.analysis.judge``).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bench import stats
from bench.report.reading.load import CELL, KEY
from bench.results.records import MEASURED
from bench.spec.metric import Metric
from bench.stats import EVIDENCE, Interval

# Columns that ``numbered`` adds: one number is compared faster than the ten columns that it stands
# for.
ARM_NUMBER, CELL_NUMBER = "arm_number", "cell_number"
PRECISION = KEY.index("precision")
Values = NDArray[np.float64]
# Columns of ``measurements`` with the logarithm of the gain over fp32 in the same process, from
# ABBA rounds, and its standard error.
GAIN = ["log_gain", "log_gain_error"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Arm:
    """The measurements of a metric by one arm."""

    key: tuple[Any, ...]
    """Its values of ``KEY``."""
    values: Values
    """One for each process or seed, in the metric's unit."""
    replicates: Sequence[Hashable]
    """The process or seed of each; an equal one of another arm makes a pair."""
    gains: Mapping[Hashable, Interval] = field(default_factory=dict)
    """By process, the logarithm of its gain over fp32 in the same process, from their ABBA
    rounds."""
    disturbed: frozenset[Hashable] = frozenset()
    """Processes with evidence of a disturbance (``stats.disturbed``)."""
    alike: frozenset[tuple[Hashable, ...]] = frozenset()
    """Values of the columns that both sides must agree in."""
    on_cpu: bool = False
    seeds: tuple[float, ...] = ()
    runs: Sequence[Hashable] = ()
    """The run of each value, where several runs count as one."""

    @property
    def cell(self) -> tuple[Any, ...]:
        """Its values of ``CELL``."""
        return self.key[:PRECISION]

    @property
    def precision(self) -> str:
        """Its precision."""
        return str(self.key[PRECISION])

    @property
    def is_disturbed(self) -> bool:
        """Whether all its processes show evidence of a disturbance."""
        return self.disturbed.issuperset(self.replicates)

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Which values count: those of disturbed processes do not while two others do."""
        is_disturbed = [name in self.disturbed for name in self.replicates]
        return np.array(stats.without_evidence(is_disturbed))

    def figure(self, metric: Metric) -> float:
        """Return one figure of the values that count, in the metric's unit.

        It is the mean of what was learned, the largest of readings, else the median.
        """
        values = self.values[self.counted]
        if metric.seed_is_input:
            return float(np.mean(values))
        if metric.replicate == "once":
            return float(np.max(values))
        return float(np.median(values))

    def additive(self, metric: Metric) -> Values:
        """Return the values on the additive scale."""
        values = self.values
        if metric.scale == "ratio":
            values = np.log(values)
        return metric.sign * values


def numbered(trials: pd.DataFrame) -> pd.DataFrame:
    """Return trials with a number for their arm and one for their cell, in their order."""
    numbers = {ARM_NUMBER: _numbers(trials, KEY), CELL_NUMBER: _numbers(trials, CELL)}
    return trials.assign(**numbers)


def _numbers(rows: pd.DataFrame, names: list[str]) -> NDArray[np.int64]:
    """Number the different values of some columns."""
    groups = rows.groupby(names, sort=False, observed=True, dropna=False)
    return np.asarray(groups.ngroup(), dtype=np.int64)


def measurements(trials: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return one row for each measurement of a metric, with ``value`` and ``GAIN``.

    Args:
        trials: rows from ``numbered``.
        metric: what was measured.
    """
    of_phase = trials[trials["phase"] == metric.phase]
    measured = of_phase[of_phase["status"].isin(MEASURED)]
    # In each row the first column that is filled counts.
    filled = measured[list(metric.columns)].bfill(axis=1)
    values = filled.iloc[:, 0].astype(float)
    is_usable = metric.is_possible(values)
    if metric.unless:
        has_replacement = measured[metric.unless].notna()
        replaced = measured.loc[has_replacement, ARM_NUMBER]
        is_usable &= ~measured[ARM_NUMBER].isin(replaced)
    rows: pd.DataFrame = measured.assign(value=values)[is_usable]
    rows[GAIN] = np.nan
    if metric.gain:
        rows[GAIN] = rows[[metric.gain, f"{metric.gain}_error"]]
    if metric.seed_is_input:
        # Where several runs count as one, a seed may be in several of them.
        seed = [ARM_NUMBER, "seed"]
        rows["value"] = rows.groupby(seed)["value"].transform("mean")
        rows = rows.drop_duplicates(seed).sort_values("seed", kind="stable")
    return rows


def arms(trials: pd.DataFrame, metric: Metric) -> dict[int, Arm]:
    """Return what each arm measured of a metric, by its number.

    The arguments are those of ``measurements``.
    """
    measured: dict[int, Arm] = {}
    if not trials["phase"].eq(metric.phase).any():
        return measured
    for _, rows in measurements(trials, metric).groupby(ARM_NUMBER, sort=False):
        first = rows.iloc[0]
        key = tuple(first[KEY])
        processes: list[Hashable] = list(zip(rows["run"], rows["trial"], strict=True))
        replicates = processes
        if metric.replicate == "seed":
            # What is learned pairs by its seed, a training's time only within its cell.
            cell = None if metric.seed_is_input else key[:PRECISION]
            replicates = [(cell, seed) for seed in rows["seed"]]
        loads = {name: rows[name].to_numpy() for name in EVIDENCE}
        is_disturbed = stats.disturbed(rows["disturbance"].tolist(), loads)
        alike = rows[list(metric.alike)].itertuples(index=False, name=None)
        measured[int(first[ARM_NUMBER])] = Arm(
            key=key,
            values=rows["value"].to_numpy(),
            replicates=replicates,
            gains=_gains(processes, rows),
            disturbed=frozenset(compress(processes, is_disturbed)),
            alike=frozenset(alike),
            on_cpu=first["device_kind"] == "cpu",
            seeds=tuple(rows["seed"].tolist()),
            runs=tuple(rows["of_run"]) if "of_run" in rows else (),
        )
    return measured


def _gains(processes: Sequence[Hashable], rows: pd.DataFrame) -> dict[Hashable, Interval]:
    """Return the log-gain over fp32 in each process that has one."""
    gains = {}
    measured = rows[[*GAIN, "rounds"]].itertuples(index=False, name=None)
    for process, (log_gain, error, count) in zip(processes, measured, strict=True):
        if not np.isnan(log_gain):
            gains[process] = stats.of_rounds(log_gain, error, int(count))
    return gains
