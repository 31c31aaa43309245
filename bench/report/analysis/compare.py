"""Runs against earlier runs of the same questions: what improved, regressed or stayed the same, row by row.

Each side is a run or several. Processes, trials and seeds of all its runs count alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from bench import stats
from bench.report.analysis.comparability import cautions, environments
from bench.report.analysis.contrast import Arm, Contrast, estimate, mean, numbers, together
from bench.report.analysis.judge import IMPROVED, judge_together, worse_than
from bench.report.analysis.summary import summarise
from bench.report.format import known, records, written
from bench.report.reading.folders import runs_in
from bench.report.reading.load import KEY, Run, load
from bench.results.records import MEASURED
from bench.spec.errors import UsageError
from bench.spec.metrics import ACCURACY, LOSS, METRICS, SPEED, Metric, compared
from bench.stats import Interval

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
WORDS = (IMPROVED[1], IMPROVED[0], *IMPROVED[2:])
"""The verdicts, in the order in which they are counted."""
SIDES = ("old", "new")
DISTURBED = ("invalid",)
"""Statuses whose cause is the measuring: such a row says nothing about what was measured."""
Pair = Mapping[Hashable, Any]
"""A row of the summary of each side, of one question."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """How one metric of one row changed from OLD to NEW."""

    metric: Metric
    verdict: str
    """A word of ``judge.IMPROVED``."""
    statuses: tuple[str, str]
    values: tuple[float | None, float | None]
    samples: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    """The values in each process, trial or seed."""
    interval: Interval | None = None
    """NEW ÷ OLD, or NEW − OLD, with its 95 % interval; of memory with what its resolution leaves open."""
    is_beyond: bool = False
    """Whether the regression is shown beyond what ``--fail-over`` allows."""
    is_told: bool = True
    """Whether two values differ by more than identical processes do."""

    def __str__(self) -> str:
        if self.interval is None:
            lost = not all(status in MEASURED for status in self.statuses)
            return " → ".join(self.statuses) if lost else "not comparable"
        if not self.is_told:
            return "not told apart"
        return written(self.metric, self.interval.ends)


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
        return [f"{where}: {name} {change}" for where, name, change in changes if change.is_beyond]

    @property
    def summary(self) -> str:
        """One sentence on all rows."""
        parts = []
        for name in METRICS:
            of_metric = [(row, row.changes[name]) for row in self.rows if name in row.changes]
            counts = Counter(change.verdict for _, change in of_metric)
            words = [f"{word} in {counts[word]}" for word in WORDS if counts[word]]
            if counts["REGRESSED"]:
                regressed = [pair for pair in of_metric if pair[1].verdict == "REGRESSED"]
                worst, change = max(regressed, key=lambda pair: _badness(pair[1]))
                words[0] += f" (worst {change}: {worst})"
            if name == "speed":
                words += [
                    f"{one.change.verdict} over {one} ({one.change})"
                    for one in self.overall
                    if one.change.verdict in ("REGRESSED", "IMPROVED")
                ]
            parts += [f"{name} {', '.join(words)}"] if words else []
        count = len(self.rows)
        return f"NEW against OLD, {count} {'row' if count == 1 else 'rows'} compared: {'; '.join(parts)}."


def _badness(change: Change) -> float:
    """Return by how much something regressed; infinite where it no longer works."""
    return math.inf if change.interval is None else abs(change.interval.center - (not change.is_told))


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
    measured = [table[table[[metric.figure for metric in compared()]].notna().any(axis=1)] for table in tables]
    pairs = _matched(tables, measured)
    if pairs.empty:
        raise UsageError(
            f"The two runs have no measured cell and precision in common: {_difference((old, new), measured)}. "
            "Measure the same in both."
        )
    found = records(pairs)
    rows = _rows(found, fail_over)
    return Comparison(
        old=sides[0],
        new=sides[1],
        rows=rows,
        overall=_overall(found, rows, fail_over),
        cautions=cautions(runs),
        environment=environments(runs, sides),
        apart=_apart(measured),
        fail_over=fail_over,
    )


def _pooled(trials: pd.DataFrame, runs: Sequence[Run], name: str) -> pd.DataFrame:
    """Return the rows of a side's runs as those of one run, their trials and processes told apart."""
    rows = trials[trials["run"].isin([run.label for run in runs])]
    names = rows["run"].astype(str) + "/" + rows["trial"].astype(str)
    return rows.assign(run=name, trial=names, replicate=numbers(rows, ["run", "replicate"]))


def _matched(tables: Sequence[pd.DataFrame], measured: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return pairs of rows of one question, of which one side was measured and the other at least tried.

    A question that each side asked of one device is compared whatever the devices; else of the same device.
    """
    figures = [metric.figure for metric in compared()]
    devices = [table.groupby(QUESTION, sort=False)["device"].nunique() for table in tables]
    several = (devices[0].reindex(devices[1].index) > 1) | (devices[1] > 1)
    pairs = tables[0].merge(tables[1], on=QUESTION, suffixes=("_old", "_new"))
    ambiguous = several.reindex(pd.MultiIndex.from_frame(pairs[QUESTION])).to_numpy(dtype=bool)
    pairs = pairs[~ambiguous | (pairs["device_old"] == pairs["device_new"]).to_numpy()]
    known = pairs[[f"{name}_{side}" for name in figures for side in ("old", "new")]].notna()
    found: pd.DataFrame = pairs[known.any(axis=1)] if len(measured[0]) and len(measured[1]) else pairs[:0]
    return found


def _rows(pairs: Sequence[Pair], fail_over: float | None) -> list[Row]:
    """Return the rows; how many there are decides what of them is no chance."""
    every = [(place, metric.name, _contrast(pair, metric)) for place, pair in enumerate(pairs) for metric in compared()]
    found = {(place, name): contrast for place, name, contrast in every if contrast is not None}
    family = list(found.values())
    judged = dict(
        zip(found, zip(family, judge_together(family), worse_than(family, fail_over), strict=True), strict=True)
    )
    rows = []
    for place, pair in enumerate(pairs):
        changes = {
            metric.name: _change(pair, *judged[place, metric.name])
            if (place, metric.name) in judged
            else _untested(metric, pair, fail_over)
            for metric in compared()
        }
        rows.append(
            Row(
                question={name: pair[name] for name in QUESTION},
                devices=(pair["device_old"], pair["device_new"]),
                changes={name: change for name, change in changes.items() if change is not None},
                speedup=_speedup(pair),
            )
        )
    return [row for row in rows if row.changes]


def _contrast(pair: Pair, metric: Metric) -> Contrast | None:
    """Return NEW against OLD; None where one was not measured, they do not compare, or one diverged."""
    old, new = (pair[f"{metric.arm}_{side}"] for side in SIDES)
    if not isinstance(old, Arm) or not isinstance(new, Arm) or (metric.seed_is_input and _diverging(pair, metric)):
        return None
    contrast = estimate(metric, new, old)
    return contrast and replace(contrast, noise=_noise(pair))


def _noise(pair: Pair) -> float | None:
    """Return the larger A/A noise of both sides."""
    return max((pair[f"noise_{side}"] for side in SIDES if known(pair[f"noise_{side}"])), default=None)


def _change(pair: Pair, contrast: Contrast, verdict: str, is_beyond: bool) -> Change:
    metric, interval = contrast.metric, contrast.shown
    if contrast.pairing == "once" and interval.low == interval.high:  # exact
        interval = Interval(center=interval.center, low=None, high=None, n=1)
    return Change(
        metric=metric,
        verdict=verdict,
        statuses=_statuses(pair, metric),
        values=_values(pair, metric),
        samples=(_samples(metric, contrast.against), _samples(metric, contrast.arm)),
        interval=interval,
        is_beyond=is_beyond,
        is_told=contrast.is_told,
    )


def _samples(metric: Metric, arm: Arm) -> tuple[float, ...]:
    return (float(arm.values.max()),) if metric.replicate == "once" else tuple(arm.values.tolist())


def _statuses(pair: Pair, metric: Metric) -> tuple[str, str]:
    was, now = (pair[f"{metric.status}_{side}"] for side in SIDES)
    return str(was) if known(was) else "", str(now) if known(now) else ""


def _values(pair: Pair, metric: Metric) -> tuple[float | None, float | None]:
    was, now = (pair[f"{metric.figure}_{side}"] for side in SIDES)
    return float(was) if known(was) else None, float(now) if known(now) else None


def _overall(pairs: Sequence[Pair], rows: Sequence[Row], fail_over: float | None) -> list[Overall]:
    """Return the change of the speed of each recipe on a device, over all rows that were timed in both.

    The mean of the logarithms: over the precisions within each process, then over the processes of each cell, then over
    the cells. Precisions that were timed in one process are no independent samples.
    """
    cells: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Pair]]] = {}
    for pair in pairs:
        if all(isinstance(pair[f"{SPEED.arm}_{side}"], Arm) for side in SIDES):
            devices = (pair["device_old"], pair["device_new"])
            subject = (*(pair[name] for name in SUBJECT_OF), *devices)
            cells.setdefault(subject, {}).setdefault((*(pair[name] for name in CELL_OF), *devices), []).append(pair)
    found: list[tuple[Row, int]] = []
    family: list[Contrast] = []
    for own in cells.values():
        parts = [part for of_cell in own.values() if (part := _of_cell(of_cell)) is not None]
        timed = [pair for of_cell in own.values() for pair in of_cell]
        if parts and len(timed) > 1:
            first = {name: timed[0][name] for name in QUESTION}, (timed[0]["device_old"], timed[0]["device_new"])
            found.append((next(row for row in rows if (row.question, row.devices) == first), len(timed)))
            family.append(mean(parts))
    judged = zip(found, family, judge_together(family), worse_than(family, fail_over), strict=True)
    return [
        Overall(
            name=f"{row.suite} on {row.where}",
            rows=count,
            change=Change(
                metric=SPEED,
                verdict=verdict,
                statuses=("ok", "ok"),
                values=(None, None),
                interval=contrast.shown,
                is_beyond=is_beyond,
            ),
        )
        for (row, count), contrast, verdict, is_beyond in judged
    ]


def _of_cell(pairs: Sequence[Pair]) -> Contrast | None:
    """Return the change of the mean over a cell's precisions; None where a side has one process with all of them."""
    old, new = (together([pair[f"{SPEED.arm}_{side}"] for pair in pairs]) for side in SIDES)
    if min(len(old.values), len(new.values)) < 2:
        return None
    contrast = estimate(SPEED, new, old)
    noises = [stats.ASSUMED_NOISE, *(noise for pair in pairs if (noise := _noise(pair)) is not None)]
    return contrast and replace(contrast, noise=max(noises))


def _diverging(pair: Pair, metric: Metric) -> int:
    """Return how many seeds diverged in NEW that did not in OLD; negative where it is the other way round."""
    lost = [seeds if isinstance(seeds := pair[f"diverged_seeds_{side}"], frozenset) else set() for side in SIDES]
    arms = [pair[f"{metric.arm}_{side}"] for side in SIDES]
    was, now = (set(arm.seeds) if isinstance(arm, Arm) else set() for arm in arms)
    return len(lost[1] & was) - len(lost[0] & now)


def _untested(metric: Metric, pair: Pair, fail_over: float | None) -> Change | None:
    """Return the change of a metric that cannot be estimated: that of its status."""
    if metric.seed_is_input and metric is not (LOSS if _values(pair, LOSS) != (None, None) else ACCURACY):
        return None
    statuses, values = _statuses(pair, metric), _values(pair, metric)
    if not all(statuses):
        return None
    measured = [status in MEASURED for status in statuses]
    if metric.seed_is_input and all(measured) and (seeds := _diverging(pair, metric)):
        worse, statuses = seeds > 0, ("ok", "diverged") if seeds > 0 else ("diverged", "ok")
    elif measured[0] == measured[1] or any(status in DISTURBED for status in statuses):
        if not any(measured) or (all(measured) and None in values):
            return None
        return Change(metric=metric, verdict="INCONCLUSIVE", statuses=statuses, values=values)
    else:
        worse = measured[0]
    verdict = "REGRESSED" if worse else "IMPROVED"
    is_beyond = worse and fail_over is not None
    return Change(metric=metric, verdict=verdict, statuses=statuses, values=values, is_beyond=is_beyond)


def _speedup(pair: Pair) -> Interval | None:
    """Return the change of the speedup over fp32."""
    arms = [pair[f"{SPEED.arm}_{side}"] for side in SIDES]
    was, now = ([gain.center for gain in arm.gains.values()] if isinstance(arm, Arm) else [] for arm in arms)
    return stats.welch(now, was).interval().exp() if was and now else None


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
