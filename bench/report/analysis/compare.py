"""Runs against earlier runs of the same questions: what improved, regressed or stayed the same, row by row.

Each side is a run or several. Processes, trials and seeds of all its runs count alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from bench import stats
from bench.report.analysis.comparability import cautions
from bench.report.analysis.parity import ACCURACY, LOSS, MIN_SEEDS, QUALITIES, Quality
from bench.report.analysis.summary import RESIDENT_RESOLUTION, summarise
from bench.report.format import known, ratio, records, signed
from bench.report.reading.folders import runs_in
from bench.report.reading.load import KEY, Run, Runs, load
from bench.results.records import MEASURED
from bench.spec.errors import UsageError
from bench.stats import Difference, Interval

QUESTION = [name for name in KEY if name not in ("run", "architecture", "device")]
"""What two rows must share to be compared: all that was asked, and not what answered."""
CELL_OF = [name for name in QUESTION if name != "precision"]
"""The same of a cell."""
SUBJECT_OF = [name for name in CELL_OF if name != "batch_size"]
"""The same of a recipe on a device."""
ASKED = {"batch_size": "batch size", "placement": "device"}
"""What parts of a question are called, where that is not the column's name."""
MOST = 4
"""More questions of a run than these are not named."""
Word = Literal["REGRESSED", "IMPROVED", "SAME", "INCONCLUSIVE"]
WORDS: tuple[Word, ...] = ("REGRESSED", "IMPROVED", "SAME", "INCONCLUSIVE")
APART = 1_000_000
"""Numbers of processes and seeds of one run of a side lie this far from those of the next."""
DISTURBED = ("invalid",)
"""Statuses whose cause is the measuring: such a row says nothing about what was measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One figure that is compared."""

    name: str
    value: str
    """The column of the summary with the figure, whose name has the unit."""
    status: str
    """The column with its status."""
    quality: Quality | None = None
    """What trainings are compared by: the change is a difference in its unit; else a ratio of which less is better."""
    change: str
    """What the change is called in JSON."""


METRICS = {
    metric.name: metric
    for metric in (
        Metric(name="speed", value="step_ms", status="speed_status", change="step_ratio"),
        Metric(name="memory", value="memory_bytes", status="memory_status", change="peak_memory_ratio"),
        Metric(name="energy", value="energy_j_per_step", status="energy_status", change="energy_ratio"),
        Metric(
            name="accuracy",
            value="accuracy_pct",
            status="train_status",
            quality=ACCURACY,
            change="accuracy_points",
        ),
        Metric(name="loss", value="token_loss", status="train_status", quality=LOSS, change="loss_nats"),
    )
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """How one metric of one row changed from OLD to NEW."""

    verdict: Word
    statuses: tuple[str, str]
    values: tuple[float | None, float | None]
    samples: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    """The values in each process, trial or seed."""
    interval: Interval | None = None
    """NEW ÷ OLD, or NEW − OLD of a quality, with its 95 % interval; of memory with what its resolution leaves open."""
    beyond: bool = False
    """Whether the regression is shown beyond what ``--fail-over`` allows."""
    told: bool = True
    """Whether two values differ by more than identical processes do."""

    def written(self, metric: Metric) -> str:
        """Write the change: a ratio or a difference with its interval, or the statuses of both."""
        if self.interval is None:
            lost = not all(status in MEASURED for status in self.statuses)
            return " → ".join(self.statuses) if lost else "not comparable"
        if not self.told:
            return "not told apart"
        if metric.quality is None:
            return ratio(self.interval.center, self.interval.low, self.interval.high)
        ends = (self.interval.low, self.interval.high)
        center, *shown = (
            signed(end, metric.quality.decimals) for end in (self.interval.center, *ends) if end is not None
        )
        return center + (f" [{', '.join(shown)}]" if shown else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One precision of one cell in both."""

    question: Mapping[str, Any]
    """Its values of ``QUESTION``."""
    devices: tuple[str, str]
    changes: Mapping[str, Change]
    """By the metric's name; without those that either side has nothing of."""
    speedup: Interval | None
    """The speedup over fp32, NEW ÷ OLD."""

    @property
    def suite(self) -> str:
        """The recipe with what was changed of it."""
        parts = [self.question[name] for name in ("parameters", "techniques") if self.question[name]]
        return f"{self.question['suite']} ({', '.join(parts)})" if parts else str(self.question["suite"])

    @property
    def where(self) -> str:
        """The device, or both where they differ."""
        place, devices = self.question["placement"], " → ".join(dict.fromkeys(self.devices))
        return f"{devices} ({place})" if place != "cpu" else devices

    def __str__(self) -> str:
        return f"{self.suite} on {self.where}, batch {self.question['batch_size']:.0f}, {self.question['precision']}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Overall:
    """The speed of all rows of a recipe on a device: what slows all of them shows sooner than in each."""

    name: str
    rows: int
    change: Change

    def __str__(self) -> str:
        return f"all {self.rows} rows of {self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two runs, or runs of two folders, side by side."""

    old: Sequence[Run]
    new: Sequence[Run]
    rows: list[Row]
    overall: list[Overall]
    """Of recipes and devices with two rows or more."""
    cautions: list[str]
    """What is missing, and what differs beside what is compared."""
    environment: list[tuple[str, str, str]]
    """What differs between the environments: its name, and its value in OLD and in NEW."""
    apart: list[str]
    """Sentences on rows that only one of the two has."""
    fail_over: float | None = None
    """The share that a regression may have, or None."""

    @property
    def untestable(self) -> int:
        """Rows timed on both sides, on one of them in a single process: from these no change can be shown."""
        speeds = [row.changes["speed"] for row in self.rows if "speed" in row.changes]
        timed = [one for one in speeds if all(status in MEASURED for status in one.statuses)]
        return sum(one.interval is None or one.interval.low is None for one in timed)

    @property
    def failures(self) -> list[str]:
        """The regressions that are shown beyond ``fail_over``; none where nothing was asked."""
        changes = [(str(one), "speed", one.change) for one in self.overall]
        changes += [(str(row), name, change) for row in self.rows for name, change in row.changes.items()]
        return [f"{where}: {name} {change.written(METRICS[name])}" for where, name, change in changes if change.beyond]

    @property
    def summary(self) -> str:
        """One sentence on all rows."""
        parts = []
        for name, metric in METRICS.items():
            of_metric = [(row, row.changes[name]) for row in self.rows if name in row.changes]
            counts = Counter(change.verdict for _, change in of_metric)
            words = [f"{word} in {counts[word]}" for word in WORDS if counts[word]]
            if counts["REGRESSED"]:
                worst, change = max(
                    (pair for pair in of_metric if pair[1].verdict == "REGRESSED"), key=lambda pair: _badness(*pair)
                )
                words[0] += f" (worst {change.written(metric)}: {worst})"
            if name == "speed":
                words += [
                    f"{one.change.verdict} over {one} ({one.change.written(metric)})"
                    for one in self.overall
                    if one.change.verdict in ("REGRESSED", "IMPROVED")
                ]
            parts += [f"{name} {', '.join(words)}"] if words else []
        count = len(self.rows)
        return f"NEW against OLD, {count} {'row' if count == 1 else 'rows'} compared: {'; '.join(parts)}."


def _badness(_: Row, change: Change) -> float:
    """Return by how much something regressed; infinite where it no longer works."""
    return math.inf if change.interval is None else abs(change.interval.center - (not change.told))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Estimate:
    """A change before its verdict, which depends on how many there are: worse is positive."""

    metric: Metric
    difference: Difference
    """Of logarithms, or of a quality."""
    margin: float
    """What a change must exceed to be one."""
    values: tuple[float | None, float | None]
    samples: tuple[tuple[float, ...], tuple[float, ...]]
    statuses: tuple[str, str]

    @property
    def decides(self) -> bool:
        return self.difference.n >= (MIN_SEEDS if self.metric.quality else 2)

    @property
    def immaterial(self) -> float:
        """What a change may be and still count as none; of too few samples none is too small."""
        if not self.decides:
            return -1.0
        return self.metric.quality.margin if self.metric.quality else math.log1p(stats.MARGIN)

    @property
    def interval(self) -> Interval:
        found = self.difference.interval()
        if self.metric.quality is None:
            return found.exp()
        if not self.metric.quality.more_is_better:
            return found
        low, high = (None if end is None else -end for end in (found.high, found.low))
        return Interval(center=0.0 - found.center, low=low, high=high, n=found.n)  # not -0.0


def compare(old: Path, new: Path, fail_over: float | None = None) -> Comparison:
    """Hold ``new`` against ``old``, for every cell and precision that both have.

    A change is said to be one where its 95 % interval clears the A/A noise (accuracy and loss: the margin of parity),
    and where that is no chance among so many: of the changes that are said, at most 5 % are expected to be chance
    (``stats.discoveries``).

    Args:
        old: a run, or a folder of runs.
        new: the same.
        fail_over: the share beyond which a regression is listed in ``failures``.

    Raises:
        UsageError: there is no run or one cannot be read, both have the same run, or they have no question in common.
    """
    folders = [runs_in([old]), runs_in([new])]
    if both := set(folders[0]) & set(folders[1]):
        raise UsageError(f"'{old}' and '{new}' are the same run: both have '{min(both)}'. Give two.")
    runs = load([*folders[0], *folders[1]])
    sides = [[run for run in runs.runs if run.folder in own] for own in folders]
    if not all(sides):
        raise UsageError(f"'{old}' and '{new}' are one run: name, host and start are the same. Give two.")
    trials = [_pooled(runs.trials, side, name) for side, name in zip(sides, ("OLD", "NEW"), strict=True)]
    tables = [summarise(rows) for rows in trials]
    measured = [table[table[[one.value for one in METRICS.values()]].notna().any(axis=1)] for table in tables]
    pairs = _matched(tables, measured)
    if pairs.empty:
        raise UsageError(
            f"The two runs have no measured cell and precision in common: {_difference((old, new), measured)}. "
            "Measure the same in both."
        )
    samples, found = [_Samples(rows) for rows in trials], records(pairs)
    rows = _rows(found, samples, fail_over)
    return Comparison(
        old=sides[0],
        new=sides[1],
        rows=rows,
        overall=_overall(found, rows, samples, fail_over),
        cautions=cautions(runs),
        environment=_environment(runs, sides),
        apart=_apart(measured),
        fail_over=fail_over,
    )


def _pooled(trials: pd.DataFrame, runs: Sequence[Run], name: str) -> pd.DataFrame:
    """Return the rows of a side's runs as those of one run, their processes and seeds numbered on."""
    order = {run.label: number for number, run in enumerate(runs)}
    rows = trials[trials["run"].isin(order)]
    shift = rows["run"].astype(str).map(order) * APART
    return rows.assign(run=name, replicate=rows["replicate"] + shift, seed=rows["seed"] + shift)


def _matched(tables: Sequence[pd.DataFrame], measured: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return pairs of rows of one question, of which one side was measured and the other at least tried.

    A question that each side asked of one device is compared whatever the devices; else of the same device.
    """
    figures = [one.value for one in METRICS.values()]
    devices = [table.groupby(QUESTION, sort=False)["device"].nunique() for table in tables]
    several = (devices[0].reindex(devices[1].index) > 1) | (devices[1] > 1)
    pairs = tables[0].merge(tables[1], on=QUESTION, suffixes=("_old", "_new"))
    ambiguous = several.reindex(pd.MultiIndex.from_frame(pairs[QUESTION])).to_numpy(dtype=bool)
    pairs = pairs[~ambiguous | (pairs["device_old"] == pairs["device_new"]).to_numpy()]
    known = pairs[[f"{name}_{side}" for name in figures for side in ("old", "new")]].notna()
    found: pd.DataFrame = pairs[known.any(axis=1)] if len(measured[0]) and len(measured[1]) else pairs[:0]
    return found


class _Samples:
    """The samples of one side, by question and device."""

    def __init__(self, trials: pd.DataFrame) -> None:
        """Index the rows of trials that were measured."""
        rows = trials[trials["status"].isin(MEASURED)]
        by = [*QUESTION, "device"]
        speed, energy, train = (rows[rows["phase"] == phase] for phase in ("speed", "energy", "train"))
        timed = speed[speed["step_ms"].gt(0)]
        self.steps = self._of(timed, by, "step_ms")
        by_process = timed.pivot_table(index=[*CELL_OF, "device", "replicate"], columns="precision", values="step_ms")
        logs = by_process.map(math.log)
        self.processes: dict[tuple[Any, ...], pd.DataFrame] = {
            _key(key): own.droplevel([*CELL_OF, "device"])
            for key, own in logs.groupby(level=[*CELL_OF, "device"], sort=False)
        }
        """The logarithms of the steps of each cell, a row for each process and a column for each precision."""
        speedups = speed[speed["speedup"].gt(0)]
        self.speedups = self._of(speedups, by, "speedup")
        self.energies = self._of(energy[energy["energy_j_per_step"].gt(0)], by, "energy_j_per_step")
        trained = train[train[[one.figure for one in QUALITIES]].notna().any(axis=1)]
        trained = trained.assign(seed=trained["seed"] % APART)
        self.seeds = {
            quality: {
                _key(key): dict(own.groupby("seed")[quality.figure].mean())
                for key, own in trained[trained[quality.figure].notna()].groupby(by, sort=False)
            }
            for quality in QUALITIES
        }
        """The figure of each seed, by the quality."""
        lost = trials[(trials["phase"] == "train") & (trials["status"] == "nonfinite")]
        self.diverged = {_key(key): set(own % APART) for key, own in lost.groupby(by, sort=False)["seed"]}
        self.epochs = {_key(key): set(own) for key, own in trained.groupby(by, sort=False)["epochs"]}

    @staticmethod
    def _of(rows: pd.DataFrame, by: list[str], name: str) -> dict[tuple[Any, ...], tuple[float, ...]]:
        return {_key(key): tuple(own.astype(float)) for key, own in rows.groupby(by, sort=False)[name]}


def _key(key: Any) -> tuple[Any, ...]:
    return tuple(key)


def _rows(pairs: list[dict[Hashable, Any]], samples: Sequence[_Samples], fail_over: float | None) -> list[Row]:
    """Return the rows; how many there are decides what of them is no chance."""
    estimates = [list(_estimates(pair, samples)) for pair in pairs]
    tested = [one for own in estimates for one in own if one.decides]
    changed = _holding(tested, [one.margin for one in tested])
    # A quality has a margin of its own, which is what a loss of it must exceed whatever else is allowed.
    limits = [one.margin if one.metric.quality else max(one.margin, math.log1p(fail_over or 0)) for one in tested]
    beyond = _holding(tested, limits) if fail_over is not None else set()
    rows = []
    for pair, own in zip(pairs, estimates, strict=True):
        changes = {
            one.metric.name: Change(
                verdict=_verdict(one.difference, id(one) in changed, one.immaterial),
                statuses=one.statuses,
                values=one.values,
                samples=one.samples,
                interval=one.interval,
                beyond=id(one) in beyond and one.difference.center > 0,
            )
            for one in own
        }
        changes |= {
            metric.name: change
            for metric in METRICS.values()
            if metric.name not in changes
            and metric.quality in (None, _quality(pair))
            and (change := _untested(metric, pair, samples, fail_over)) is not None
        }
        rows.append(
            Row(
                question={name: pair[name] for name in QUESTION},
                devices=(pair["device_old"], pair["device_new"]),
                changes={name: changes[name] for name in METRICS if name in changes},
                speedup=_speedup(pair, samples),
            )
        )
    return [row for row in rows if row.changes]


def _holding(tested: Sequence[_Estimate], margins: Sequence[float]) -> set[int]:
    """Return the ids of those whose difference lies beyond its margin by more than chance among all of them."""
    ps = [one.difference.beyond(margin) for one, margin in zip(tested, margins, strict=True)]
    return {id(one) for one, holds in zip(tested, stats.discoveries(ps), strict=True) if holds}


def _verdict(difference: Difference, changed: bool, margin: float) -> Word:
    """Return the verdict of a difference, of which worse is positive; ``margin`` is what does not matter."""
    if changed:
        return "REGRESSED" if difference.center > 0 else "IMPROVED"
    return "SAME" if difference.interval().reach <= margin else "INCONCLUSIVE"


def _of(samples: Mapping[tuple[Any, ...], Any], pair: Mapping[Hashable, Any], side: str) -> Any:
    return samples.get((*(pair[name] for name in QUESTION), pair[f"device_{side}"]))


def _quality(pair: Mapping[Hashable, Any]) -> Quality:
    """Return what the trainings of a pair are compared by."""
    return LOSS if _values(pair, METRICS["loss"]) != (None, None) else ACCURACY


def _statuses(pair: Mapping[Hashable, Any], metric: Metric) -> tuple[str, str]:
    was, now = (pair[f"{metric.status}_{side}"] for side in ("old", "new"))
    return str(was) if known(was) else "", str(now) if known(now) else ""


def _values(pair: Mapping[Hashable, Any], metric: Metric) -> tuple[float | None, float | None]:
    was, now = (pair[f"{metric.value}_{side}"] for side in ("old", "new"))
    return float(was) if known(was) else None, float(now) if known(now) else None


def _estimates(pair: dict[Hashable, Any], samples: Sequence[_Samples]) -> Iterator[_Estimate]:
    """Yield the changes of a pair that rest on samples."""
    old, new = samples
    noises = [value for value in (pair["noise_old"], pair["noise_new"]) if known(value)]
    noise = math.log1p(max(noises, default=stats.ASSUMED_NOISE))
    of_energy = (old.energies, new.energies) if pair["energy_source_old"] == pair["energy_source_new"] else ({}, {})
    for name, sources, margin in (
        ("speed", (old.steps, new.steps), noise),
        ("energy", of_energy, math.log1p(stats.MARGIN)),
    ):
        was, now = _of(sources[0], pair, "old"), _of(sources[1], pair, "new")
        if was and now:
            metric = METRICS[name]
            difference = stats.welch(np.log(now), np.log(was))
            yield _Estimate(
                metric=metric,
                difference=difference,
                margin=margin,
                values=_values(pair, metric),
                samples=(was, now),
                statuses=_statuses(pair, metric),
            )
    quality = _quality(pair)
    trained = _of(old.seeds[quality], pair, "old"), _of(new.seeds[quality], pair, "new")
    alike = _of(old.epochs, pair, "old") == _of(new.epochs, pair, "new")
    if all(trained) and alike and not _diverging(pair, samples):
        was, now = trained
        left, right = (was, now) if quality.more_is_better else (now, was)  # so that worse is positive
        seeds = sorted({*was} & {*now})
        difference = (
            stats.student([left[seed] - right[seed] for seed in seeds])
            if seeds
            else stats.welch(tuple(left.values()), tuple(right.values()))
        )
        metric = next(metric for metric in METRICS.values() if metric.quality == quality)
        yield _Estimate(
            metric=metric,
            difference=difference,
            margin=quality.margin,
            values=_values(pair, metric),
            samples=(tuple(was.values()), tuple(now.values())),
            statuses=_statuses(pair, metric),
        )


def _overall(
    pairs: list[dict[Hashable, Any]], rows: Sequence[Row], samples: Sequence[_Samples], fail_over: float | None
) -> list[Overall]:
    """Return the change of the speed of each recipe on a device, over all rows that were timed in both.

    The mean of the logarithms: over the precisions within each process, then over the processes of each cell, then over
    the cells. Precisions that were timed in one process are no independent samples.
    """
    cells: dict[tuple[Any, ...], dict[tuple[Any, ...], list[dict[Hashable, Any]]]] = {}
    for pair in pairs:
        if all(_of(side.steps, pair, name) for side, name in zip(samples, ("old", "new"), strict=True)):
            devices = (pair["device_old"], pair["device_new"])
            subject = (*(pair[name] for name in SUBJECT_OF), *devices)
            cells.setdefault(subject, {}).setdefault((*(pair[name] for name in CELL_OF), *devices), []).append(pair)
    found = []
    for own in cells.values():
        parts, noises = [], [stats.ASSUMED_NOISE]
        for key, arms in own.items():
            precisions = [pair["precision"] for pair in arms]
            logs = [
                side.processes[(*key[:-2], device)].loc[:, precisions].dropna().mean(axis=1)
                for side, device in zip(samples, key[-2:], strict=True)
            ]
            if min(map(len, logs)) >= 2:
                parts.append(stats.welch(logs[1].to_numpy(), logs[0].to_numpy()))
                noises += [
                    pair[f"noise_{side}"] for pair in arms for side in ("old", "new") if known(pair[f"noise_{side}"])
                ]
        pairs_of = [pair for arms in own.values() for pair in arms]
        if parts and len(pairs_of) > 1:
            first = pairs_of[0]
            question, devices = {name: first[name] for name in QUESTION}, (first["device_old"], first["device_new"])
            row = next(row for row in rows if (row.question, row.devices) == (question, devices))
            found.append(
                (f"{row.suite} on {row.where}", len(pairs_of), stats.mean_difference(parts), math.log1p(max(noises)))
            )
    changed = stats.discoveries([difference.beyond(margin) for _, _, difference, margin in found])
    limits = [max(margin, math.log1p(fail_over or 0)) for *_, margin in found]
    beyond = stats.discoveries(
        [difference.beyond(limit) for (_, _, difference, _), limit in zip(found, limits, strict=True)]
    )
    return [
        Overall(
            name=name,
            rows=count,
            change=Change(
                verdict=_verdict(difference, is_changed, math.log1p(stats.MARGIN)),
                statuses=("ok", "ok"),
                values=(None, None),
                interval=difference.interval().exp(),
                beyond=fail_over is not None and is_beyond and difference.center > 0,
            ),
        )
        for (name, count, difference, _), is_changed, is_beyond in zip(found, changed, beyond, strict=True)
    ]


def _diverging(pair: Mapping[Hashable, Any], samples: Sequence[_Samples]) -> int:
    """Return how many seeds diverged in NEW that did not in OLD; negative where it is the other way round."""
    old, new = samples
    lost = [_of(side.diverged, pair, name) or set() for side, name in zip(samples, ("old", "new"), strict=True)]
    quality = _quality(pair)
    was, now = (_of(side.seeds[quality], pair, name) or {} for side, name in ((old, "old"), (new, "new")))
    return len(lost[1] & {*was}) - len(lost[0] & {*now})


def _untested(
    metric: Metric, pair: dict[Hashable, Any], samples: Sequence[_Samples], fail_over: float | None
) -> Change | None:
    """Return the change of a metric without samples: of memory by its resolution, else of its status."""
    statuses, values = _statuses(pair, metric), _values(pair, metric)
    if metric.name == "memory" and None not in values:
        return _memory(pair, statuses, fail_over)
    if not all(statuses):
        return None
    measured = [status in MEASURED for status in statuses]
    if metric.quality and all(measured) and (seeds := _diverging(pair, samples)):
        worse, statuses = seeds > 0, ("ok", "diverged") if seeds > 0 else ("diverged", "ok")
    elif measured[0] == measured[1] or any(status in DISTURBED for status in statuses):
        if not any(measured) or (all(measured) and None in values):
            return None
        return Change(verdict="INCONCLUSIVE", statuses=statuses, values=values)
    else:
        worse = measured[0]
    verdict: Word = "REGRESSED" if worse else "IMPROVED"
    return Change(verdict=verdict, statuses=statuses, values=values, beyond=worse and fail_over is not None)


def _memory(pair: Mapping[Hashable, Any], statuses: tuple[str, str], fail_over: float | None) -> Change:
    """Return the change of the peak: exact on a GPU; on a CPU, identical processes differ by the resolution."""
    was, now = (float(pair[f"memory_bytes_{side}"]) for side in ("old", "new"))
    open_bytes = RESIDENT_RESOLUTION if pair["device_kind_new"] == "cpu" else 0
    interval = Interval(center=now / was, low=max(0.0, now - open_bytes) / was, high=(now + open_bytes) / was, n=1)
    words = {"FASTER": "REGRESSED", "SLOWER": "IMPROVED", "SAME": "SAME", "INCONCLUSIVE": "INCONCLUSIVE"}
    verdict: Any = words[stats.verdict(interval, stats.MARGIN)]
    assert interval.low is not None
    return Change(
        verdict=verdict,
        statuses=statuses,
        values=(was, now),
        samples=((was,), (now,)),
        interval=interval if open_bytes else Interval(center=interval.center, low=None, high=None, n=1),
        beyond=fail_over is not None and verdict == "REGRESSED" and interval.low > 1 + fail_over,
        told=not open_bytes or abs(now - was) >= open_bytes,
    )


def _speedup(pair: Mapping[Hashable, Any], samples: Sequence[_Samples]) -> Interval | None:
    """Return the change of the speedup over fp32."""
    was, now = _of(samples[0].speedups, pair, "old"), _of(samples[1].speedups, pair, "new")
    return stats.welch_interval(np.log(now), np.log(was)).exp() if was and now else None


def _difference(folders: tuple[Path, Path], sides: Sequence[pd.DataFrame]) -> str:
    """Say which parts of their questions two runs have no value of in common; where all are shared, what each asked."""
    for folder, side in zip(folders, sides, strict=True):
        if side.empty:
            return f"'{folder}' has no figure of time or memory"
    names = [name for name in QUESTION if not set(sides[0][name]) & set(sides[1][name])]
    if not names:  # each value is in both, but never together with the others
        names = [name for name in QUESTION if len(set(sides[0][name]) | set(sides[1][name])) > 1]
        old, new = (" and ".join(map(_question, side[names].drop_duplicates().values[:MOST])) for side in sides)
        return f"'{folders[0]}' has {old}; '{folders[1]}' has {new}"
    parts = []
    for name in names:
        values = [", ".join(_question([value]) or "none" for value in sorted(set(side[name]))) for side in sides]
        parts.append(f"{ASKED.get(name, name)} {values[0]} in '{folders[0]}' and {values[1]} in '{folders[1]}'")
    return "; ".join(parts)


def _question(values: Iterable[object]) -> str:
    return " ".join(f"{value:.0f}" if isinstance(value, float) else str(value) for value in values if value != "")


def _apart(sides: Sequence[pd.DataFrame]) -> list[str]:
    """Say what one side has and the other lacks."""
    old, new = (set(side[QUESTION].itertuples(index=False, name=None)) for side in sides)
    sentences = []
    for name, own in (("OLD", old - new), ("NEW", new - old)):
        if lone := sorted(own, key=str):
            at = QUESTION.index
            named = [
                f"{key[at('suite')]} on {key[at('placement')]} batch {key[at('batch_size')]:.0f} {key[at('precision')]}"
                for key in lone
            ]
            more = f" and {len(named) - 6} more" if len(named) > 6 else ""
            sentences.append(f"Only in {name}: {', '.join(named[:6])}{more}.")
    return sentences


SOFTWARE = {
    "version": "ampmeter",
    "host": "host",
    "os": "system",
    "python": "Python",
    "torch": "torch",
    "torchvision": "torchvision",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "driver": "driver",
    "openmp": "OpenMP's spinning",
    "removed_variables": "overrides removed",
    "variables": "environment variables",
}
"""What run.json says of a machine and its software, and what it is called."""
DEVICE = {
    "name": "device",
    "memory_total_bytes": "memory (bytes)",
    "power_limit_w": "power limit (W)",
    "sm_clock_limit_mhz": "clock limit (MHz)",
    "memory_clock_limit_mhz": "memory clock limit (MHz)",
    "cores": "cores",
    "threads": "threads",
}
"""The same of a device."""


def _environment(runs: Runs, sides: Sequence[Sequence[Run]]) -> list[tuple[str, str, str]]:
    """Return what differs between the environments of two sides."""
    used = runs.trials["placement"].unique()
    found = []
    for key, name in SOFTWARE.items():
        values = [
            [run.info.get(key) if key == "version" else run.environment.get(key) for run in side] for side in sides
        ]
        found.append((name, *(_listed(own) for own in values)))
    for placement in used:
        devices = [
            [device for run in side for device in run.devices if device["placement"] == placement] for side in sides
        ]
        if all(devices):
            called = "" if len(used) == 1 else f" of {placement}"
            for key, name in DEVICE.items():
                found.append((f"{name}{called}", *(_listed(one.get(key) for one in own) for own in devices)))
    return [(name, old, new) for name, old, new in found if old != new]


def _listed(values: Iterable[Any]) -> str:
    """Write the different values of a side; what is not known is a dash."""
    words = (", ".join(map(str, value)) if isinstance(value, list) else value for value in values)
    return ", ".join(sorted({str(word) if known(word) and word != "" else "–" for word in words}))
