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
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bench import stats
from bench.report.reading.load import CELL, KEY, is_emulated
from bench.results.records import MEASURED
from bench.spec.metrics import Metric
from bench.spec.precisions import BASELINE
from bench.stats import EVIDENCE, Difference, Interval

ARM, IN_CELL = "arm_number", "cell_number"
"""Columns that ``numbered`` adds: one number is compared faster than the ten columns that it stands for."""
PRECISION = KEY.index("precision")
Pairing = Literal["rounds", "processes", "seeds", "apart", "once"]
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
    alone: NDArray[np.bool_]
    """Whether its process held no other arm."""
    gains: Mapping[Hashable, Interval] = field(default_factory=dict)
    """By process, the logarithm of its gain over fp32 in the same process, from their ABBA rounds."""
    rounds: Mapping[Hashable, pd.Series[float]] = field(default_factory=dict)
    """By process, the logarithm of each round's steps a millisecond: for arms that took turns without fp32."""
    disturbed: frozenset[Hashable] = frozenset()
    """Processes with evidence of a disturbance (``stats.disturbed``)."""
    alike: frozenset[tuple[Hashable, ...]] = frozenset()
    """Values of the columns that both sides must agree in."""
    on_cpu: bool = False
    seeds: tuple[float, ...] = ()
    turns: tuple[float, ...] = ()
    """The number of each process within the cell: arms of one number were measured one after the other, or together."""
    runs: Sequence[Hashable] = ()
    """The run or the day of each value, where several runs count as one."""

    def figure(self, metric: Metric) -> float:
        """Return one figure of all values: the mean over seeds, the median over processes, the largest if read once."""
        summaries: dict[str, Callable[[Values], Any]] = {"seed": np.mean, "process": np.median, "once": np.max}
        return float(summaries[metric.replicate](self.values))

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
    """On the additive scale: above 0 is better. ``change.n`` is without disturbed replicates that lie far off."""
    pairing: Pairing
    replicates: int
    """How many there were."""
    groups: Sequence[tuple[int, float]] = ()
    """Of changes within processes: how many lie together, and their mean; further groups lie far below and above."""
    difference: Difference | None = None
    """The change as Student's distribution, for p-values and other confidences; None of other estimators."""
    noise: float | None = None
    """The A/A noise of its cell, as a share; None where it was not measured."""
    shares_clock: bool = False
    """Whether the power limit held down a clock that the two shared, as arms that take turns do."""

    @property
    def threshold(self) -> float:
        """The limit that an interval must exceed to show a change, on the additive scale: A/A noise, or the margin."""
        if not self.metric.has_noise:
            return self.metric.threshold
        return math.log1p(stats.ASSUMED_NOISE if self.noise is None else self.noise)

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
        """Return ``shown`` with an interval at another confidence than 95 %."""
        return self.shown if self.difference is None else self._in_unit(self.difference.interval(confidence))

    @property
    def is_told(self) -> bool:
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


def arms(
    trials: pd.DataFrame, metric: Metric, *, phase: str = "", blocks: pd.DataFrame | None = None
) -> dict[int, Arm]:
    """Return what each arm measured of a metric, by its number; arms of which nothing counts are left out.

    Args:
        trials: rows from ``numbered``.
        metric: what they measured.
        phase: another phase than the metric's own that measures it, too.
        blocks: rows of blocks.csv with the columns of their cells, where pairs need each round.
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
    taken = ["value", "run", "trial", "seed", "replicate", "paired", "device_kind", *metric.alike, *ends]
    taken += [*EVIDENCE, *({"of_run"} & {*rows.columns})]
    columns = {name: rows[name].to_numpy() for name in taken}
    by_round = {} if blocks is None else round_logs(blocks)
    keys = list(zip(*(rows[name].tolist() for name in KEY), strict=True))
    places: dict[int, list[int]] = {}
    for place, number in enumerate(rows[ARM].tolist()):
        places.setdefault(number, []).append(place)
    measured: dict[int, Arm] = {}
    for number, at in places.items():
        key = keys[at[0]]
        part = {name: column[at] for name, column in columns.items()}
        processes = list(zip(part["run"], part["trial"], strict=True))
        disturbed = set(compress(processes, stats.disturbed(*(part[name] for name in EVIDENCE))))
        cell = None if metric.seed_is_input else key[:PRECISION]
        measured[number] = Arm(
            key=key,
            values=part["value"],
            replicates=[(cell, seed) for seed in part["seed"]] if metric.replicate == "seed" else processes,
            alone=part["paired"] == "no",
            gains=_gains(processes, disturbed, *(part[name] for name in (*ends, "rounds"))) if ends else {},
            disturbed=frozenset(disturbed),
            rounds={
                process: by_round[name] for process in processes if (name := (*process, key[PRECISION])) in by_round
            },
            alike=frozenset(zip(*(part[name] for name in metric.alike), strict=True)),
            on_cpu=part["device_kind"][0] == "cpu",
            seeds=tuple(part["seed"].tolist()),
            turns=tuple(part["replicate"].tolist()),
            runs=tuple(part["of_run"]) if "of_run" in part else (),
        )
    return measured


def _gains(
    processes: Sequence[Hashable], disturbed: Container[Hashable], *ends_and_rounds: Values
) -> dict[Hashable, Interval]:
    """Return the logarithm of the gain over fp32 in each process that has one; ends that are not finite are unknown."""
    *ends, rounds = ends_and_rounds
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(np.column_stack(ends).astype(float)).tolist()
    gains: dict[Hashable, Interval] = {}
    for process, (center, low, high), count in zip(processes, logs, np.nan_to_num(rounds, nan=1.0), strict=True):
        if math.isfinite(center):
            within = (low, high) if math.isfinite(low) and math.isfinite(high) else (None, None)
            seen = process in disturbed
            gains[process] = Interval(center=center, low=within[0], high=within[1], n=int(count), is_disturbed=seen)
    return gains


def round_logs(blocks: pd.DataFrame) -> dict[Any, pd.Series[float]]:
    """Return ln(steps per ms) of each round that counts, by run, trial and precision."""
    counted = blocks[blocks["discarded"] == ""]
    names = [counted[name].astype(str) for name in ("run", "trial", "precision")]
    log: pd.Series[float] = np.log(counted["steps"] / counted["time_ms"])  # type: ignore[assignment]
    logs = log.groupby([*names, counted["round"]], sort=False).mean()
    groups = logs.groupby(level=[0, 1, 2], sort=False)
    return {key: of_arm.droplevel([0, 1, 2]) for key, of_arm in groups}


def estimate(metric: Metric, arm: Arm, against: Arm) -> Contrast | None:
    """Set one arm against another, as closely paired as what they share allows; None where they do not compare."""
    if arm.alike != against.alike:
        return None
    for values in arm.alike if metric.is_described else ():
        metric = metric.of(dict(zip(metric.alike, values, strict=True)))
    sides: Any = {"metric": metric, "arm": arm, "against": against}
    if metric.replicate == "once":
        return Contrast(**sides, change=_read_once(metric, arm, against), pairing="once", replicates=1)
    if processes := _in_turns(arm, against):
        change = stats.process_interval(processes)
        count, grouped = len(processes), stats.groups(processes)
        return Contrast(**sides, change=change, pairing="rounds", replicates=count, groups=grouped)
    pairing: Pairing = "apart"
    if not len(arm.values) or not len(against.values):
        return None
    if differences := _differences(metric, arm, against):
        count, pairing = len(differences), "seeds" if metric.replicate == "seed" else "processes"
        disturbed = _disturbed(arm, against, differences) if pairing == "processes" else set()
        kept = [value for replicate, value in differences.items() if replicate not in disturbed]
        difference = stats.student(kept or list(differences.values()))
    else:
        difference = stats.welch(*_apart(metric, arm, against))
        count = difference.n
    return Contrast(**sides, change=difference.interval(), pairing=pairing, replicates=count, difference=difference)


def _in_turns(arm: Arm, against: Arm) -> list[Interval]:
    """Return the change in each process that timed both in ABBA rounds, with its own interval."""
    if shared := [process for process in arm.rounds if process in against.rounds]:
        rounds = {process: (arm.rounds[process] - against.rounds[process]).dropna() for process in shared}
        return [
            replace(
                stats.rounds_interval(np.asarray(logs, dtype=np.float64)), is_disturbed=process in against.disturbed
            )
            for process, logs in rounds.items()
            if len(logs)
        ]
    if arm.key[:PRECISION] != against.key[:PRECISION]:
        return []
    if against.key[PRECISION] == BASELINE:
        return list(arm.gains.values())
    return [gain.negative() for gain in against.gains.values()] if arm.key[PRECISION] == BASELINE else []


def _differences(metric: Metric, arm: Arm, against: Arm) -> dict[Hashable, float]:
    """Return the difference in each process or seed that both have; none where they have too few in common."""
    fewest = min(2, len(arm.values), len(against.values))
    sides = [
        {process: gain.center for process, gain in side.gains.items()}
        if arm.gains and against.gains
        else dict(zip(side.replicates, side.additive(metric).tolist(), strict=True))
        for side in (arm, against)
    ]
    shared = [replicate for replicate in sides[0] if replicate in sides[1]]
    return {replicate: sides[0][replicate] - sides[1][replicate] for replicate in shared if len(shared) >= fewest}


def _disturbed(arm: Arm, against: Arm, differences: Mapping[Hashable, float]) -> set[Hashable]:
    """Return the disturbed processes that lie far off the others: the same that a speedup over fp32 leaves out.

    Of arms without such speedups they are those whose differences lie far off.
    """
    seen = arm.disturbed | against.disturbed
    alone = {
        process: Interval(center=value, low=None, high=None, n=1, is_disturbed=process in seen)
        for process, value in differences.items()
    }
    sides = [arm.gains, against.gains] if arm.gains and against.gains else [alone]
    return {process for side in sides for process in compress(side, stats.left_out(list(side.values())))}


def _apart(metric: Metric, *sides: Arm) -> list[Values]:
    """Return the values of arms in processes of their own; all, where one of them has too few of these."""
    is_enough = all(side.alone.sum() >= metric.fewest for side in sides)
    return [side.additive(metric)[side.alone if is_enough else slice(None)] for side in sides]


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


def together(arms: Sequence[Arm]) -> Arm:
    """Return the geometric mean of some arms of one cell in each turn that has all of them, as an arm."""
    logs = [dict(zip(arm.turns, np.log(arm.values), strict=True)) for arm in arms]
    shared = [turn for turn in logs[0] if all(turn in log for log in logs)]
    run_of = dict(zip(arms[0].turns, arms[0].runs, strict=False))
    values = np.exp([np.mean([log[turn] for log in logs]) for turn in shared])
    names = [(arms[0].key, turn) for turn in shared]
    of_runs = tuple(run_of[turn] for turn in shared if turn in run_of)
    return Arm(key=arms[0].key, values=values, replicates=names, alone=np.zeros(len(shared), bool), runs=of_runs)


def mean(contrasts: Sequence[Contrast]) -> Contrast:
    """Return the mean of independent contrasts of one metric, at least one, all with the same weight."""
    difference = stats.mean_difference(
        [contrast.difference for contrast in contrasts if contrast.difference is not None]
    )
    noise = max(stats.ASSUMED_NOISE if contrast.noise is None else contrast.noise for contrast in contrasts)
    return replace(contrasts[0], change=difference.interval(), difference=difference, noise=noise)


def _baseline(alike: Sequence[Arm]) -> Arm | None:
    """Return fp32; where its own figures do not count, one without any, which gains in shared processes are over."""
    timed = next((arm for arm in alike if arm.gains), None)
    fp32 = next((arm for arm in alike if arm.key[PRECISION] == BASELINE), None)
    if fp32 or timed is None:
        return fp32
    key = (*timed.key[:PRECISION], BASELINE)
    return Arm(key=key, values=np.array([]), replicates=(), alone=np.array([], bool), alike=timed.alike)


def contrasts(metric: Metric, arms: Mapping[int, Arm]) -> dict[int, Contrast]:
    """Set every arm against fp32 in its cell; return the contrasts by the arm's number."""
    cells: dict[Hashable, list[Arm]] = {}
    for arm in arms.values():
        cells.setdefault(arm.key[:PRECISION], []).append(arm)
    baselines = {cell: _baseline(alike) for cell, alike in cells.items()}
    found = {}
    for number, arm in arms.items():
        baseline = baselines[arm.key[:PRECISION]]
        if baseline is None or arm is baseline:
            continue
        contrast = estimate(metric, arm, baseline)
        if contrast is not None:
            found[number] = contrast
    return found


def intervals(
    contrasts: Mapping[int, Contrast], names: Sequence[str], show: Callable[[Contrast], Interval | None]
) -> pd.DataFrame:
    """Return the center and ends that ``show`` gives of contrasts, as columns by the arm's number; empty for None."""
    shown = {number: show(contrast) for number, contrast in contrasts.items()}
    ends = [(None, None, None) if interval is None else interval.ends for interval in shown.values()]
    return pd.DataFrame(ends, pd.Index(list(shown), dtype="int64", name=ARM), list(names)).astype(float)
