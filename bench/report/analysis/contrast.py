"""Every comparison of a report: which arms are set against which, by which metric, and with which interval.

    metric    what is compared: its column, its direction, its margin      bench.spec.metrics
    arm       what one precision of one cell measured of a metric          arms
    contrast  one arm against another, with an interval                    estimate, contrasts
    verdict   the words for contrasts, which depend on the question        bench.report.analysis.judge

Estimates are made on an additive scale on which more is better: logarithms where a change is a ratio, plain values
where it is a difference, the sign turned where less is better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bench import stats
from bench.report.reading.load import CELL, KEY, is_emulated
from bench.results.records import MEASURED
from bench.spec.metric import Metric
from bench.spec.precisions import BASELINE
from bench.stats import EVIDENCE, Interval

ARM, IN_CELL = "arm_number", "cell_number"
"""Columns that ``numbered`` adds: one number is compared faster than the ten columns that it stands for."""
PRECISION = KEY.index("precision")
Pairing = Literal["processes", "seeds", "unpaired", "once"]
Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Arm:
    """The measurements of a metric by one arm."""

    key: tuple[Any, ...]
    """Its values of ``KEY``."""
    values: Values
    """One for each process or seed, in the metric's unit."""
    replicates: Sequence[Hashable]
    """The process or seed of each; an equal one of another arm makes a pair."""
    unpaired: NDArray[np.bool_]
    """Whether its process held no other arm."""
    gains: Mapping[Hashable, Interval] = field(default_factory=dict)
    """By process, the logarithm of its gain over fp32 in the same process, from their ABBA rounds."""
    disturbed: frozenset[Hashable] = frozenset()
    """Processes with evidence of a disturbance (``stats.disturbed``)."""
    alike: frozenset[tuple[Hashable, ...]] = frozenset()
    """Values of the columns that both sides must agree in."""
    on_cpu: bool = False
    seeds: tuple[float, ...] = ()
    runs: Sequence[Hashable] = ()
    """The run of each value, where several runs count as one."""

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Which values count: those of disturbed processes do not while two others do."""
        return np.array(stats.without_evidence([name in self.disturbed for name in self.replicates]))

    def figure(self, metric: Metric) -> float:
        """Return one figure of what counts: the mean over seeds, median over processes, or largest if read once."""
        summaries: dict[str, Callable[[Values], Any]] = {"seed": np.mean, "process": np.median, "once": np.max}
        return float(summaries[metric.replicate](self.values[self.counted]))

    def additive(self, metric: Metric) -> Values:
        """Return the values on the additive scale."""
        return metric.sign * (np.log(self.values) if metric.scale == "ratio" else self.values)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Contrast:
    """An arm against another."""

    metric: Metric
    arm: Arm
    against: Arm
    change: Interval
    """On the additive scale: above 0 is better. ``change.n`` counts what the interval rests on: processes that count,
    seeds, or in ``compare`` pairs or days of runs."""
    pairing: Pairing
    replicates: int
    """How many there were."""
    noise: float | None = None
    """The A/A noise of its cell, as a share; None where it was not measured."""
    allowance: float = 0.0
    """What the machine may differ by between the two, on the additive scale; a change must exceed it, too."""
    shares_clock: bool = False
    """Whether the power limit held down a clock that the two shared, as arms that take turns do."""

    @property
    def threshold(self) -> float:
        """The limit that an interval must exceed to show a change, on the additive scale: A/A noise, or the margin."""
        if not self.metric.has_noise:
            return self.metric.threshold + self.allowance
        return math.log1p(stats.ASSUMED_NOISE if self.noise is None else self.noise) + self.allowance

    @property
    def gain(self) -> Interval:
        """How many times as good the arm is, 2 being twice; or by how much better, in the metric's unit."""
        return self.change.exp() if self.metric.scale == "ratio" else self.change

    @property
    def shown(self) -> Interval:
        """The arm ÷ the other, or the arm − the other, with the ends of the interval."""
        return self._in_unit(self.change)

    def _in_unit(self, change: Interval) -> Interval:
        turned = change if self.metric.sign > 0 else change.negative()
        return turned.exp() if self.metric.scale == "ratio" else turned

    def at(self, confidence: float) -> Interval:
        """Return ``shown`` with an interval at another confidence."""
        return self._in_unit(self.change.at(confidence))

    @property
    def is_disturbed(self) -> bool:
        """Whether all its processes show evidence of a disturbance, so that all count."""
        disturbed = self.arm.disturbed | self.against.disturbed
        return disturbed.issuperset(self.arm.replicates)

    @property
    def is_resolvable(self) -> bool:
        """Whether the two differ by more than the instrument cannot tell apart; always, unless they are read once."""
        low, high = self.change.low, self.change.high
        return self.pairing != "once" or low is None or high is None or low == high or not low < 0 < high


def numbered(trials: pd.DataFrame) -> pd.DataFrame:
    """Return trials with a number for their arm and one for their cell, in the order in which they come."""
    return trials.assign(**{ARM: numbers(trials, KEY), IN_CELL: numbers(trials, CELL)})


def numbers(rows: pd.DataFrame, names: list[str]) -> NDArray[np.int64]:
    """Number the different values of some columns: one number is compared faster than several words."""
    numbers = rows.groupby(names, sort=False, observed=True, dropna=False).ngroup()
    return np.asarray(numbers, dtype=np.int64)


def arms(trials: pd.DataFrame, metric: Metric, *, phase: str = "") -> dict[int, Arm]:
    """Return what each arm measured of a metric, by its number; arms of which nothing counts are left out.

    Args:
        trials: rows from ``numbered``.
        metric: what they measured.
        phase: another phase than the metric's own that measures it, too.
    """
    measured_rows = (trials["phase"] == (phase or metric.phase)) & trials["status"].isin(MEASURED)
    if not measured_rows.any():
        return {}
    rows = trials[measured_rows]
    filled = rows[list(metric.columns)].to_numpy(dtype=np.float64)
    values = filled[np.arange(len(rows)), (~np.isnan(filled)).argmax(axis=1)]
    usable = metric.is_possible(values)
    if metric.is_cost:
        usable &= ~is_emulated(rows["precision"]).to_numpy()
    if metric.unless:
        usable &= ~rows[ARM].isin(rows.loc[rows[metric.unless].notna(), ARM]).to_numpy()
    if not usable.any():
        return {}
    rows = rows[usable].assign(value=values[usable])
    if metric.seed_is_input:  # of runs that count as one, a seed may be in several
        rows = rows.assign(value=rows.groupby([ARM, "seed"])["value"].transform("mean"))
        rows = rows.drop_duplicates([ARM, "seed"]).sort_values("seed", kind="stable")
    ends = [f"{metric.gain}{end}" for end in ("", "_low", "_high")] if metric.gain else []
    measured: dict[int, Arm] = {}
    for number, places in rows.groupby(ARM, sort=False).indices.items():
        part = rows.iloc[places]
        key = tuple(part.iloc[0][KEY])
        processes = list(zip(part["run"], part["trial"], strict=True))
        evidence = stats.disturbed(part["disturbance"].tolist(), {name: part[name].to_numpy() for name in EVIDENCE})
        cell = None if metric.seed_is_input else key[:PRECISION]
        measured[int(number)] = Arm(
            key=key,
            values=part["value"].to_numpy(),
            replicates=[(cell, seed) for seed in part["seed"]] if metric.replicate == "seed" else processes,
            unpaired=part["paired"].to_numpy() == "no",
            gains=_gains(processes, part[ends], part["rounds"]) if ends else {},
            disturbed=frozenset(compress(processes, evidence)),
            alike=frozenset(part[list(metric.alike)].itertuples(index=False, name=None))
            if metric.alike
            else frozenset(),
            on_cpu=part["device_kind"].iloc[0] == "cpu",
            seeds=tuple(part["seed"].tolist()),
            runs=tuple(part["of_run"]) if "of_run" in part else (),
        )
    return measured


def _gains(processes: Sequence[Hashable], ends: pd.DataFrame, rounds: pd.Series[float]) -> dict[Hashable, Interval]:
    """Return the log-gain over fp32 in each process that has one."""
    gains: dict[Hashable, Interval] = {}
    for process, (gain, low, high), count in zip(processes, ends.to_numpy(), rounds.fillna(1), strict=True):
        if gain > 0:  # NaN where there is none
            gains[process] = stats.from_row(gain, low, high, int(count))
    return gains


def estimate(metric: Metric, arm: Arm, against: Arm) -> Contrast | None:
    """Set one arm against another, as closely paired as what they share allows; None where they do not compare."""
    if arm.alike != against.alike:
        return None
    for values in arm.alike if metric.is_described else ():
        metric = metric.of(dict(zip(metric.alike, values, strict=True)))
    sides: Any = {"metric": metric, "arm": arm, "against": against}
    if metric.replicate == "once":
        return Contrast(**sides, change=_read_once(metric, arm, against), pairing="once", replicates=1)
    pairs = _pairs(metric, arm, against)
    if pairs and metric.replicate == "seed":
        change = stats.student([pair.center for pair in pairs.values()])
        return Contrast(**sides, change=change, pairing="seeds", replicates=len(pairs))
    if pairs:
        disturbed = arm.disturbed | against.disturbed
        change = stats.over_processes([*pairs.values()], [process in disturbed for process in pairs])
        return Contrast(**sides, change=change, pairing="processes", replicates=len(pairs))
    is_enough = all((side.unpaired & side.counted).sum() >= metric.fewest for side in (arm, against))
    # Where both have enough processes of their own, those that they shared with other arms are left out.
    sides_values = [
        side.additive(metric)[side.counted & (side.unpaired if is_enough else True)] for side in (arm, against)
    ]
    change = stats.welch(*sides_values)
    return Contrast(**sides, change=change, pairing="unpaired", replicates=change.n)


def _pairs(metric: Metric, arm: Arm, against: Arm) -> dict[Hashable, Interval]:
    """Return the change in each process or seed that both have; none where they have too few in common."""
    if arm.key[:PRECISION] == against.key[:PRECISION]:
        if against.key[PRECISION] == BASELINE and len(arm.gains) >= min(2, len(arm.values)):
            return dict(arm.gains)
        if arm.key[PRECISION] == BASELINE and len(against.gains) >= min(2, len(against.values)):
            return {process: gain.negative() for process, gain in against.gains.items()}
    ours, theirs = _by_replicate(metric, arm, against), _by_replicate(metric, against, arm)
    pairs = {name: ours[name].minus(theirs[name]) for name in ours if name in theirs}
    return pairs if len(pairs) >= min(2, len(arm.values), len(against.values)) else {}


def _by_replicate(metric: Metric, arm: Arm, other: Arm) -> dict[Hashable, Interval]:
    """Return an arm's gain over fp32 in each process, if both arms have gains; else its values."""
    if arm.gains and other.gains:
        return dict(arm.gains)
    values = zip(arm.replicates, arm.additive(metric).tolist(), strict=True)
    return {replicate: stats.around(value, 0.0, 1.0, 1) for replicate, value in values}


def _read_once(metric: Metric, arm: Arm, against: Arm) -> Interval:
    """Return the change between readings; its interval spans the instrument's resolution and readings that differ.

    In a ratio, a reading below the resolution counts as the resolution: it may be nothing, which has no ratio.
    """
    resolution = metric.cpu_resolution if arm.on_cpu or against.on_cpu else 0.0
    off = resolution / 2  # of each: A ÷ B is one over B ÷ A
    is_ratio = metric.scale == "ratio"

    def end(now: float, was: float) -> float:
        return metric.sign * (math.log(now / was) if is_ratio else now - was)

    now, was = (np.maximum(side.values, max(resolution, 1.0) if is_ratio else -math.inf) for side in (arm, against))
    low, high = sorted((end(now.min() - off, was.max() + off), end(now.max() + off, was.min() - off)))
    return Interval(center=end(now.max(), was.max()), low=low, high=high, n=1)  # of several readings the largest


def contrasts(metric: Metric, arms: Mapping[int, Arm]) -> dict[int, Contrast]:
    """Set every arm against fp32 in its cell; return the contrasts by the arm's number."""
    baselines = {arm.key[:PRECISION]: arm for arm in arms.values() if arm.key[PRECISION] == BASELINE}
    against_fp32 = {}
    for number, arm in arms.items():
        baseline = baselines.get(arm.key[:PRECISION])
        if baseline is None or baseline is arm:
            continue
        contrast = estimate(metric, arm, baseline)
        if contrast is not None:
            against_fp32[number] = contrast
    return against_fp32


def intervals(
    contrasts: Mapping[int, Contrast], names: Sequence[str], show: Callable[[Contrast], Interval | None]
) -> pd.DataFrame:
    """Return the center and ends that ``show`` gives of contrasts, as columns by the arm's number; empty for None."""
    shown = {number: show(contrast) for number, contrast in contrasts.items()}
    ends = [(None, None, None) if interval is None else interval.ends for interval in shown.values()]
    return pd.DataFrame(ends, pd.Index(list(shown), dtype="int64", name=ARM), list(names)).astype(float)
