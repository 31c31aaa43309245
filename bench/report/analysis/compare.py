"""Runs against earlier runs of the same questions: what improved, regressed or stayed the same, row by row.

Each side is a run or several. Of times and energy the samples are pairs of runs that took turns, or the days of runs
where each side has three; with fewer they are processes, and a change must exceed what a machine's days differ by.
Memory, and seeds of all runs alike, do not depend on the day.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench import stats
from bench.report.analysis.comparability import cautions, environments
from bench.report.analysis.contrast import Arm, Contrast, estimate, numbers
from bench.report.analysis.judge import IMPROVED, judge_together, worse_than
from bench.report.analysis.summary import summarise
from bench.report.format import at_batch, counted, known, records, titled, written
from bench.report.reading.folders import runs_in
from bench.report.reading.load import KEY, Run, load
from bench.results.records import MEASURED
from bench.spec.errors import UsageError
from bench.spec.metrics import ACCURACY, METRICS, SPEED, Metric, compared, learned
from bench.stats import Interval

QUESTION = [name for name in KEY if name not in ("run", "architecture", "device")]
"""Columns in which two rows must agree to be compared: all that was asked, and not the device that answered."""
ASKED = {"batch_size": "batch size", "placement": "device"}
"""Names of parts of a question, where they are not the columns' names."""
WORDS = (IMPROVED[1], IMPROVED[0], *IMPROVED[2:])
"""The verdicts, in the order in which they are counted."""
SIDES = ("old", "new")
LEAST_DAYS = 3
"""Days of each side from which its days are the samples."""
BETWEEN_DAYS = math.log1p(0.06)
"""With fewer, a change must exceed this, too: one machine's days differ by 2 to 3 % (results of the project's own)."""
Pair = Mapping[Hashable, Any]
"""A row of the summary of each side, of one question."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """How one metric of one row changed from OLD to NEW."""

    metric: Metric
    verdict: str
    """A word of ``judge.IMPROVED``."""
    statuses: tuple[str, ...] = ("ok", "ok")
    values: tuple[float | None, ...] = (None, None)
    contrast: Contrast | None = None
    """NEW against OLD; None where the two do not compare."""
    is_beyond: bool = False
    """Whether the regression is shown beyond what ``--fail-over`` allows."""

    @property
    def samples(self) -> list[tuple[float, ...]]:
        """The values of OLD and NEW in each process, trial or seed."""
        arms = (self.contrast.against, self.contrast.arm) if self.contrast else ()
        values = [tuple(arm.values.tolist()) for arm in arms] or [(), ()]
        return [(max(of_arm),) for of_arm in values] if arms and self.metric.replicate == "once" else values

    @property
    def interval(self) -> Interval | None:
        """NEW ÷ OLD, or NEW − OLD, with its 95 % interval; of memory with what its resolution leaves open."""
        shown = self.contrast.shown if self.contrast else None
        is_exact = shown and self.metric.replicate == "once" and shown.low == shown.high
        return replace(shown, low=None, high=None) if shown and is_exact else shown

    @property
    def is_shown(self) -> bool:
        """Whether it is a change for better or worse."""
        return self.verdict in ("REGRESSED", "IMPROVED")

    @property
    def is_resolvable(self) -> bool:
        """Whether two values differ by more than identical processes do."""
        return self.contrast is None or self.contrast.is_resolvable

    @property
    def gain(self) -> float:
        """The change on the additive scale: below 0 is worse; infinitely so where it no longer works."""
        return self.contrast.change.center if self.contrast else -math.inf

    def __str__(self) -> str:
        if self.interval is None:
            lost = not all(status in MEASURED for status in self.statuses)
            return " → ".join(self.statuses) if lost else "not comparable"
        return written(self.metric, self.interval.ends) if self.is_resolvable else "not told apart"


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
        return titled(*(self.question[name] for name in ("suite", "parameters", "techniques")))

    @property
    def where(self) -> str:
        """The device, or both where they differ."""
        place, devices = self.question["placement"], " → ".join(dict.fromkeys(self.devices))
        return f"{devices} ({place})" if place != "cpu" else devices

    @property
    def subject(self) -> str:
        """The recipe and the device."""
        return f"{self.suite} on {self.where}"

    def __str__(self) -> str:
        return f"{self.subject}{at_batch(self.question)}, {self.question['precision']}"


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
    """Sentences on what is missing, and on differences that are not compared."""
    environment: list[tuple[str, str, str]]
    """The differences of the environments: the name, and its value in OLD and in NEW."""
    apart: list[str]
    """Sentences on rows that only one of the two has, or has measured."""
    unreached: list[str]
    """Sentences on what OLD measured, and an unfinished run of NEW planned and has no row of."""
    fail_over: float | None = None
    """The share that a regression may have, or None."""
    by_turns: bool = False
    """Whether the runs of both sides took turns."""

    @property
    def limits(self) -> list[str]:
        """A sentence on what the runs cannot tell, and what would help; none where they tell all that they may."""
        contrasts = [change.contrast for _, change in self.changes if change.verdict == "INCONCLUSIVE"]
        if not any(contrast is not None and contrast.allowance for contrast in contrasts):
            return []
        asked = f"{100 * self.fail_over:g} % and " if self.fail_over else ""
        return [
            f"A change of time or energy is shown only beyond {asked}6 %, for one machine's days differ by 2 to 3 % and "
            f"a side has runs of fewer than {LEAST_DAYS} days. compare OLD NEW --interleave FOLDER measures both by "
            "turns, which tells smaller changes."
        ]

    @property
    def untestable(self) -> int:
        """Rows timed on both sides whose change has no interval, as after a single process: none can be shown."""
        speeds = [row.changes["speed"] for row in self.rows if "speed" in row.changes]
        timed = [change for change in speeds if all(status in MEASURED for status in change.statuses)]
        return sum(change.interval is None or change.interval.low is None for change in timed)

    @property
    def changes(self) -> list[tuple[str, Change]]:
        """All changes, each with the name of its row, or of all rows together."""
        overall = [(str(recipe), recipe.change) for recipe in self.overall]
        return overall + [(str(row), change) for row in self.rows for change in row.changes.values()]

    @property
    def failures(self) -> list[str]:
        """The regressions shown beyond ``fail_over``, and what NEW did not reach; none where nothing was asked."""
        shown = [f"{where}: {change.metric.name} {change}" for where, change in self.changes if change.is_beyond]
        return [*shown, *self.unreached] if self.fail_over is not None else []

    @property
    def unchanged(self) -> str:
        """One sentence that counts what did not change; empty if all did."""
        verdicts = Counter(change.verdict for _, change in self.changes)
        counts = {word: verdicts[word] for word in ("SAME", "INCONCLUSIVE") if verdicts[word]}
        words = ", ".join(f"{count} {word}" for word, count in counts.items())
        of_all = f"{sum(counts.values())} of {counted(verdicts.total(), 'figure')}"
        return f"No change is shown in {of_all}: {words}." if counts else ""

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
                worst, change = min(regressed, key=lambda pair: pair[1].gain)
                words[0] += f" (worst {change}: {worst})"
            if name == "speed":
                words += [
                    f"{recipe.change.verdict} over {recipe} ({recipe.change})"
                    for recipe in self.overall
                    if recipe.change.is_shown
                ]
            parts += [f"{name} {', '.join(words)}"] if words else []
        return f"NEW against OLD, {counted(len(self.rows), 'row')} compared: {'; '.join(parts)}."


def compare(old: Path, new: Path, fail_over: float | None = None, *, by_turns: bool = False) -> Comparison:
    """Hold ``new`` against ``old``, for every cell and precision that both have.

    IMPROVED and REGRESSED require the 95 % interval to clear the A/A noise (of other metrics than speed: the metric's
    margin), and control the false discovery rate over all rows at 5 % (``stats.discoveries``).

    Args:
        old: a run, or a folder of runs.
        new: the same.
        fail_over: the share beyond which a regression is listed in ``failures``.
        by_turns: whether runs of both took turns, in the order of their starts.

    Raises:
        UsageError: there is no run or one cannot be read, both have the same run, or they have no question in common.
    """
    folders = [runs_in([old]), runs_in([new])]
    if both := set(folders[0]) & set(folders[1]):
        raise UsageError(f"'{old}' and '{new}' are the same run: both have '{min(both)}'. Give two.")
    runs = load([*folders[0], *folders[1]])
    sides = [[run for run in runs.runs if run.folder in of_side] for of_side in folders]
    if by_turns and (why := _out_of_turn(sides)):
        raise UsageError(f"'{old}' and '{new}' did not take turns: {why}. Leave out --by-turns.")
    trials = [_pooled(runs.trials, side, name, by_turns) for side, name in zip(sides, ("OLD", "NEW"), strict=True)]
    tables = [summarise(rows) for rows in trials]
    measured = [table[table[[metric.figure for metric in compared()]].notna().any(axis=1)] for table in tables]
    pairs = _matched(tables, measured)
    for folder, side, rows in zip((old, new), sides, trials, strict=True):
        if rows.empty and runs.ablations["run"].isin([run.label for run in side]).any():
            raise UsageError(f"'{folder}' has ablations alone, which compare does not set side by side: report both.")
    if pairs.empty:
        raise UsageError(
            f"The two runs have no measured cell and precision in common: {_difference((old, new), measured)}. "
            "Measure the same in both."
        )
    in_both = records(pairs)
    compared_rows = _rows(in_both, fail_over, by_turns)
    return Comparison(
        old=sides[0],
        new=sides[1],
        rows=compared_rows,
        overall=_overall(in_both, compared_rows, fail_over, by_turns),
        cautions=cautions(runs),
        environment=environments(runs, sides),
        apart=[*_lost(compared_rows, trials[1]), *_apart(measured, tables)],
        unreached=_unreached(trials, sides[1]),
        fail_over=fail_over,
        by_turns=by_turns,
    )


def _out_of_turn(sides: Sequence[Sequence[Run]]) -> str:
    """Say why runs did not take turns: a pair is one of each side; empty if they did, or where no start is known."""
    if len(sides[0]) != len(sides[1]):
        return "they have different numbers of runs"
    starts = sorted((_start(run), name) for side, name in zip(sides, ("OLD", "NEW"), strict=True) for run in side)
    alike = [
        f"two runs of {one[1]} follow each other, at {one[0]} and {other[0]}"
        for one, other in zip(starts[::2], starts[1::2], strict=True)
        if one[1] == other[1] and one[0] != other[0]
    ]
    return alike[0] if alike else ""


def _start(run: Run) -> str:
    return str(run.info.get("started") or "")


def _pooled(trials: pd.DataFrame, runs: Sequence[Run], name: str, by_turns: bool) -> pd.DataFrame:
    """Return the rows of a side's runs as of one run; ``of_run`` is a row's sample: by turns its run, else its day."""
    rows = trials[trials["run"].isin([run.label for run in runs])]
    names = rows["run"].astype(str) + "/" + rows["trial"].astype(str)
    ordered = sorted(runs, key=_start)
    samples = {run.label: turn if by_turns else _start(run)[:10] for turn, run in enumerate(ordered)}
    of_run = rows["run"].astype(str).map(samples)
    return rows.assign(run=name, trial=names, replicate=numbers(rows, ["run", "replicate"]), of_run=of_run)


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
    known = pairs[[f"{name}_{side}" for name in figures for side in SIDES]].notna().any(axis=1)
    statuses = pairs[[*{f"{metric.status}_new" for metric in compared()}]]
    failed = (statuses.notna() & ~statuses.isin([*MEASURED, "", "invalid"])).any(axis=1)
    return pairs.loc[known & (failed | bool(len(measured[1]))) & bool(len(measured[0]))]


def _of(pair: Pair, name: str) -> list[Any]:
    """Return a column of the summary of OLD and of NEW; what is unknown is None."""
    values = [pair[f"{name}_{side}"] for side in SIDES]
    return [value if isinstance(value, Arm | frozenset) or known(value) else None for value in values]


def _rows(pairs: Sequence[Pair], fail_over: float | None, by_turns: bool) -> list[Row]:
    """Return the rows; how many there are decides what of them is no chance."""
    every = {
        (place, metric): _contrast(pair, metric, by_turns) for place, pair in enumerate(pairs) for metric in compared()
    }
    judged = _judged({key: contrast for key, contrast in every.items() if contrast is not None}, fail_over)
    rows = []
    for place, pair in enumerate(pairs):
        changes = {}
        for metric in compared():
            tested = judged.get((place, metric))
            change = replace(tested, **_outcome(pair, metric)) if tested else _untested(metric, pair, fail_over)
            if change is not None:
                changes[metric.name] = change
        question = {name: pair[name] for name in QUESTION}
        devices = (pair["device_old"], pair["device_new"])
        if changes:
            rows.append(Row(question=question, devices=devices, changes=changes, speedup=_speedup(pair)))
    return rows


def _judged(family: Mapping[Any, Contrast], fail_over: float | None) -> dict[Any, Change]:
    """Return the changes that contrasts show when they are judged together."""
    contrasts = list(family.values())
    words = zip(family.items(), judge_together(contrasts), worse_than(contrasts, fail_over), strict=True)
    return {
        key: Change(metric=contrast.metric, verdict=verdict, contrast=contrast, is_beyond=is_beyond)
        for (key, contrast), verdict, is_beyond in words
    }


def _outcome(pair: Pair, metric: Metric) -> dict[str, Any]:
    """Return the statuses of both sides, and the figures of what is compared."""
    statuses = tuple(str(status or "") for status in _of(pair, metric.status))
    values = tuple(arm.figure(metric) if arm else None for arm in _of(pair, metric.arm))
    return {"statuses": statuses, "values": values}


def _contrast(pair: Pair, metric: Metric, by_turns: bool) -> Contrast | None:
    """Return NEW against OLD; None where one was not measured, they do not compare, or one diverged."""
    old, new = _of(pair, metric.arm)
    if old is None or new is None or (metric.seed_is_input and _diverging(pair, metric)):
        return None
    contrast = estimate(metric, new, old)
    return contrast and _over_runs([replace(contrast, noise=_noise(pair))], by_turns)


def _over_runs(contrasts: Sequence[Contrast], by_turns: bool) -> Contrast:
    """Return the change of one row, or the mean of several, with the runs of times and energy as its samples.

    Rows of one run share its day, so each run counts once, by their mean. Of other metrics, and of a row with runs of
    too few days, the change is returned as it is, the latter with the allowance for days.
    """
    first = contrasts[0]
    if first.metric.replicate != "process":
        return first
    new, old = (_by_run(contrasts, which) for which in ("arm", "against"))
    if by_turns:
        pairs = [new[run] - old[run] for run in sorted(new.keys() & old.keys())]
        change = stats.student(pairs) if pairs else stats.around(first.change.center, 0.0, 1.0, 0)
        return replace(first, change=change)
    if min(len(new), len(old)) >= LEAST_DAYS:
        return replace(first, change=stats.welch([*new.values()], [*old.values()]))
    return replace(first, allowance=BETWEEN_DAYS if first.metric.scale == "ratio" else 0.0)


def _by_run(contrasts: Sequence[Contrast], which: str) -> dict[Any, float]:
    """Return a side's means over rows by run, on the additive scale, each row relative to its OLD mean."""
    means: dict[Any, list[float]] = {}
    for contrast in contrasts:
        arm: Arm = getattr(contrast, which)
        values = arm.additive(contrast.metric) - contrast.against.additive(contrast.metric).mean()
        runs = np.array(arm.runs)
        for run in dict.fromkeys(arm.runs):
            means.setdefault(run, []).append(float(values[runs == run].mean()))
    return {run: float(np.mean(values)) for run, values in means.items()}


def _noise(pair: Pair) -> float:
    """Return the larger A/A noise of both sides; where it was not measured it counts as ``ASSUMED_NOISE``."""
    return max(stats.ASSUMED_NOISE if share is None else float(share) for share in _of(pair, "noise"))


def _overall(pairs: Sequence[Pair], rows: Sequence[Row], fail_over: float | None, by_turns: bool) -> list[Overall]:
    """Return the change of the speed of each recipe on a device, over all rows that were timed in both.

    Only runs are independent samples of all rows together, so there is none where a side has too few of them.
    """
    subjects: dict[str, list[Contrast]] = {}
    names = {(*row.question.values(), *row.devices): row.subject for row in rows}
    for pair in pairs:
        name = names.get((*(pair[part] for part in QUESTION), pair["device_old"], pair["device_new"]))
        old, new = _of(pair, SPEED.arm)
        if name is None or old is None or new is None:
            continue
        contrast = estimate(SPEED, new, old)
        if contrast is not None:
            subjects.setdefault(name, []).append(replace(contrast, noise=_noise(pair)))
    family = {}
    for name, contrasts in subjects.items():
        change = _over_runs(contrasts, by_turns)
        if len(contrasts) > 1 and not change.allowance:
            noise = max(contrast.noise or 0.0 for contrast in contrasts)
            family[name] = replace(change, noise=noise)
    judged = _judged(family, fail_over)
    return [Overall(name=name, rows=len(subjects[name]), change=change) for name, change in judged.items()]


def _diverging(pair: Pair, metric: Metric) -> int:
    """Return how many seeds diverged in NEW that did not in OLD; negative where it is the other way round."""
    lost = [seeds or frozenset() for seeds in _of(pair, "diverged_seeds")]
    was, now = (set(arm.seeds) if arm else set() for arm in _of(pair, metric.arm))
    return len(lost[1] & was) - len(lost[0] & now)


def _untested(metric: Metric, pair: Pair, fail_over: float | None) -> Change | None:
    """Return the change of a metric that cannot be estimated: that of its status."""
    compared_by = [metric for metric in learned() if any(_of(pair, metric.arm))] or [ACCURACY]
    if metric.seed_is_input and metric not in compared_by:
        return None
    outcome = _outcome(pair, metric)
    statuses, values = outcome["statuses"], outcome["values"]
    measured = [status in MEASURED for status in statuses]
    if not all(statuses):
        return None
    if metric.seed_is_input and all(measured) and (seeds := _diverging(pair, metric)):
        is_worse, statuses = seeds > 0, ("ok", "diverged") if seeds > 0 else ("diverged", "ok")
    elif measured[0] == measured[1] or "invalid" in statuses:  # a row that was disturbed says nothing
        is_empty = not any(measured) or (all(measured) and None in values)
        return None if is_empty else Change(metric=metric, verdict="INCONCLUSIVE", **outcome)
    else:
        is_worse = measured[0]
    verdict, is_beyond = "REGRESSED" if is_worse else "IMPROVED", is_worse and fail_over is not None
    return Change(metric=metric, verdict=verdict, statuses=statuses, values=values, is_beyond=is_beyond)


def _speedup(pair: Pair) -> Interval | None:
    """Return the change of the speedup over fp32, without the processes that a speedup leaves out."""
    centers = []
    for arm in _of(pair, SPEED.arm):
        gains = arm.gains if arm else {}
        kept = stats.without_evidence([process in arm.disturbed for process in gains])
        centers.append([gain.center for gain, counts in zip(gains.values(), kept, strict=True) if counts])
    if not all(centers):
        return None
    return stats.welch(centers[1], centers[0]).exp()


def _difference(folders: tuple[Path, Path], sides: Sequence[pd.DataFrame]) -> str:
    """Say which parts of their questions two runs have no value of in common."""
    for folder, side in zip(folders, sides, strict=True):
        if side.empty:
            return f"'{folder}' has no figure of time or memory"
    parts = []
    for name in (name for name in QUESTION if not set(sides[0][name]) & set(sides[1][name])):
        old, new = (", ".join(_word(value) for value in sorted(set(side[name]))) for side in sides)
        parts.append(f"{ASKED.get(name, name)} {old} in '{folders[0]}' and {new} in '{folders[1]}'")
    return "; ".join(parts) or "they share each part of a question, but never all parts of one"


def _word(value: object) -> str:
    return f"{value:.0f}" if isinstance(value, float) else str(value or "none")


def _unreached(trials: Sequence[pd.DataFrame], new: Sequence[Run]) -> list[str]:
    """Say what OLD measured, and an unfinished run of NEW planned and has no row of."""
    unfinished = [trial for run in new if run.info.get("finished", "") is None for trial in run.list("planned")]
    planned = {(trial["cell"], trial["phase"], arm) for trial in unfinished for arm in trial["arms"]}
    names = ["cell", "phase", "precision"]
    left = planned - set(trials[1][names].itertuples(index=False, name=None))
    phases = [metric.phase for metric in compared()]
    old = trials[0][trials[0]["status"].isin(MEASURED) & trials[0]["phase"].isin(phases)]
    sentences = []
    for row in records(old.drop_duplicates(names)):
        if (row["cell"], row["phase"], row["precision"]) in left:
            question, devices = {name: row[name] for name in QUESTION}, (row["device"], row["device"])
            where = Row(question=question, devices=devices, changes={}, speedup=None)
            sentences.append(f"{where}: {row['phase']} of OLD not measured in NEW, which is unfinished")
    return sentences


def _lost(rows: Sequence[Row], new: pd.DataFrame) -> list[str]:
    """Say in how many rows NEW failed where OLD was measured, and why first."""
    worse = [(row, change) for row in rows for change in row.changes.values() if change.verdict == "REGRESSED"]
    if not (lost := [(row, change) for row, change in worse if change.statuses[1] not in MEASURED]):
        return []
    row, change = lost[0]
    asked = {**row.question, "phase": change.metric.phase, "status": change.statuses[1]}
    details = new.loc[(new[[*asked]] == pd.Series(asked)).all(axis=1) & new["detail"].ne(""), "detail"]
    count = f"{len({str(row) for row, _ in lost})} of {counted(len(rows), 'row')}"
    first = ": ".join([f"{row}, {change.metric.name} {change}", *details[:1]])
    return [f"NEW failed in {count} that OLD has. The first is {first}."]


def _apart(sides: Sequence[pd.DataFrame], tried: Sequence[pd.DataFrame]) -> list[str]:
    """Say what one side measured and the other did not try."""
    (old, new), (old_tried, new_tried) = (
        [set(side[QUESTION].itertuples(index=False, name=None)) for side in of_both] for of_both in (sides, tried)
    )
    sentences = []
    for name, questions in (("OLD", old - new_tried), ("NEW", new - old_tried)):
        rows = [dict(zip(QUESTION, question, strict=True)) for question in sorted(questions, key=str)]
        named = [
            f"{row['suite']} on {row['placement']} batch {row['batch_size']:.0f} {row['precision']}" for row in rows[:6]
        ]
        more = f" and {len(rows) - 6} more" if len(rows) > 6 else ""
        sentences += [f"Only in {name}: {', '.join(named)}{more}."] if rows else []
    return sentences
