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

import pandas as pd

from bench import stats
from bench.compare.judge import judge_together, worse_than
from bench.report.analysis.comparability import cautions, environments
from bench.report.analysis.contrast import Arm, Contrast, estimate, numbers
from bench.report.analysis.summary import summarise
from bench.report.format import at_batch, counted, enumerated, known, records, titled, written
from bench.report.reading.folders import runs_in
from bench.report.reading.load import KEY, Run, load
from bench.results.records import MEASURED
from bench.spec.errors import UsageError
from bench.spec.metric import Metric
from bench.spec.metrics import ACCURACY, METRICS, SPEED, compared, learned
from bench.stats import Interval

QUESTION = [name for name in KEY if name not in ("run", "architecture", "device")]
"""Columns in which two rows must agree to be compared: all that was asked, and not the device that answered."""
WORDS = ("REGRESSED", "IMPROVED", "SAME", "INCONCLUSIVE")
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
    def gain(self) -> float:
        """The change on the additive scale: below 0 is worse; infinitely so where it no longer works."""
        return self.contrast.change.center if self.contrast else -math.inf

    def __str__(self) -> str:
        if self.interval is None:
            lost = not all(status in MEASURED for status in self.statuses)
            return " → ".join(self.statuses) if lost else "not comparable"
        is_told_apart = self.contrast is None or self.contrast.is_resolvable
        return written(self.metric, self.interval.ends) if is_told_apart else "not told apart"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One precision of one cell in both."""

    question: Pair
    """Its values of ``QUESTION``."""
    devices: tuple[str, str]
    changes: Mapping[str, Change]
    """By the metric's name; without those that either side has nothing of."""
    speedup: Interval | None
    """The speedup over fp32, NEW ÷ OLD."""

    @property
    def subject(self) -> str:
        """The recipe with what was changed of it, and the device; both devices where they differ."""
        recipe = titled(*(self.question[name] for name in ("suite", "parameters", "techniques")))
        place, devices = self.question["placement"], " → ".join(dict.fromkeys(self.devices))
        return f"{recipe} on {devices}" + (f" ({place})" if place != "cpu" else "")

    def __str__(self) -> str:
        return f"{self.subject}{at_batch(self.question)}, {self.question['precision']}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two runs, or runs of two folders, side by side."""

    old: Sequence[Run]
    new: Sequence[Run]
    rows: list[Row]
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

    @property
    def limits(self) -> list[str]:
        """A sentence on what the runs cannot tell, and what would help; none where runs are the samples."""
        if not any(change.contrast is not None and change.contrast.allowance for _, change in self.changes):
            return []
        return [
            "A change of time or energy is shown only if its whole interval lies beyond the A/A noise (of energy 1 %) "
            f"plus 6 %, because OLD or NEW has runs of fewer than {LEAST_DAYS} days, and a machine's days differ. To "
            "tell smaller changes, let compare measure both by turns: --interleave FOLDER, with suites' files, "
            "checkouts or environments as OLD and NEW."
        ]

    @property
    def untestable(self) -> int:
        """Rows timed on both sides whose change has no interval, as after a single process: none can be shown."""
        speeds = [row.changes["speed"] for row in self.rows if "speed" in row.changes]
        timed = [change for change in speeds if all(status in MEASURED for status in change.statuses)]
        return sum(change.interval is None or change.interval.low is None for change in timed)

    @property
    def changes(self) -> list[tuple[str, Change]]:
        """All changes, each with the name of its row."""
        return [(str(row), change) for row in self.rows for change in row.changes.values()]

    @property
    def failures(self) -> list[str]:
        """The regressions shown beyond ``fail_over``, and what NEW did not reach; none where nothing was asked."""
        shown = [f"{where}: {change.metric.name} {change}" for where, change in self.changes if change.is_beyond]
        return [*shown, *self.unreached] if self.fail_over is not None else []

    @property
    def unchanged(self) -> str:
        """One sentence that counts what did not change; empty if all did."""
        changes = [change for _, change in self.changes]
        rest = sum(not change.is_shown for change in changes)
        return f"No change is shown in {rest} of {counted(len(changes), 'figure')}." if rest else ""

    @property
    def summary(self) -> str:
        """One sentence on all rows."""
        parts = []
        for name in METRICS:
            counts = Counter(row.changes[name].verdict for row in self.rows if name in row.changes)
            words = ", ".join(f"{word} in {counts[word]}" for word in WORDS if counts[word])
            parts += [f"{name} {words}"] if words else []
        return f"NEW against OLD, {counted(len(self.rows), 'row')} compared: {'; '.join(parts)}."


def compare(old: Path, new: Path, fail_over: float | None = None, *, by_turns: bool = False) -> Comparison:
    """Hold ``new`` against ``old``, for every cell and precision that both have.

    IMPROVED and REGRESSED require the 95 % interval to clear the A/A noise (of other metrics than speed: the metric's
    margin), and with runs of few days 6 % more, and control the false discovery rate over all rows at 5 %
    (``stats.discoveries``).

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
        cautions=cautions(runs),
        environment=environments(runs, sides),
        apart=[*_lost(compared_rows, trials[1]), *_apart(measured, tables)],
        unreached=_unreached(trials, sides[1]),
        fail_over=fail_over,
    )


def _out_of_turn(sides: Sequence[Sequence[Run]]) -> str:
    """Say why runs did not take turns: a pair is one of each side; empty if they did, or where no start is known."""
    if len(sides[0]) != len(sides[1]):
        return "they have different numbers of runs"
    starts = sorted((_start(run), name) for side, name in zip(sides, ("OLD", "NEW"), strict=True) for run in side)
    for (start, name), (next_start, next_name) in zip(starts[::2], starts[1::2], strict=True):
        if name == next_name and start != next_start:
            return f"two runs of {name} follow each other, at {start} and {next_start}"
    return ""


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

    They are of one device; where the sides have no device in common, of any.
    """
    figures = [metric.figure for metric in compared()]
    pairs = tables[0].merge(tables[1], on=QUESTION, suffixes=("_old", "_new"))
    is_same = pairs["device_old"] == pairs["device_new"]
    pairs = pairs[is_same | (not is_same.any())]
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
    family: dict[tuple[int, Metric], Contrast] = {}
    for place, pair in enumerate(pairs):
        for metric in compared():
            contrast = _contrast(pair, metric, by_turns)
            if contrast is not None:
                family[place, metric] = contrast
    words = judge_together([*family.values()])
    beyond = worse_than([*family.values()], fail_over)
    judged = dict(zip(family, zip(words, beyond, strict=True), strict=True))
    rows = []
    for place, pair in enumerate(pairs):
        changes: dict[str, Change] = {}
        for metric in compared():
            contrast, outcome = family.get((place, metric)), _outcome(pair, metric)
            if contrast is not None:
                verdict, is_beyond = judged[place, metric]
                changes[metric.name] = Change(
                    metric=contrast.metric, verdict=verdict, is_beyond=is_beyond, contrast=contrast, **outcome
                )
            elif (change := _untested(metric, pair, outcome, fail_over)) is not None:
                changes[metric.name] = change
        question: Pair = {name: pair[name] for name in QUESTION}
        devices = (pair["device_old"], pair["device_new"])
        if changes:
            rows.append(Row(question=question, devices=devices, changes=changes, speedup=_speedup(pair)))
    return rows


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
    return contrast and _over_runs(replace(contrast, noise=_noise(pair)), by_turns)


def _over_runs(contrast: Contrast, by_turns: bool) -> Contrast:
    """Return the change with the runs of times and energy as its samples, where there are enough.

    Other changes are returned as they are, those of time and energy with the allowance for days.
    """
    if contrast.metric.replicate != "process":
        return contrast
    new, old = (
        pd.Series(arm.additive(contrast.metric), list(arm.runs))[arm.counted].groupby(level=0).mean()
        for arm in (contrast.arm, contrast.against)
    )
    if by_turns:
        pairs = (new - old).dropna().tolist()
        change = stats.student(pairs) if pairs else stats.around(contrast.change.center, 0.0, 1.0, 0)
        return replace(contrast, change=change)
    if min(len(new), len(old)) >= LEAST_DAYS:
        return replace(contrast, change=stats.welch(new.tolist(), old.tolist()))
    return replace(contrast, allowance=BETWEEN_DAYS if contrast.metric.scale == "ratio" else 0.0)


def _noise(pair: Pair) -> float:
    """Return the larger A/A noise of both sides; where it was not measured it counts as ``ASSUMED_NOISE``."""
    return max(stats.ASSUMED_NOISE if share is None else float(share) for share in _of(pair, "noise"))


def _diverging(pair: Pair, metric: Metric) -> int:
    """Return how many seeds diverged in NEW that did not in OLD; negative where it is the other way round."""
    lost = [seeds or frozenset() for seeds in _of(pair, "diverged_seeds")]
    was, now = (set(arm.seeds) if arm else set() for arm in _of(pair, metric.arm))
    return len(lost[1] & was) - len(lost[0] & now)


def _untested(metric: Metric, pair: Pair, outcome: Mapping[str, Any], fail_over: float | None) -> Change | None:
    """Return the change of a metric that cannot be estimated: that of its status."""
    compared_by = [metric for metric in learned() if any(_of(pair, metric.arm))] or [ACCURACY]
    if metric.seed_is_input and metric not in compared_by:
        return None
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
    """Return the change of the speedup over fp32, with an interval over processes whatever the runs."""
    sides = []
    for arm in _of(pair, SPEED.arm):
        if not arm or not arm.gains:
            return None
        is_disturbed = [process in arm.disturbed for process in arm.gains]
        sides.append(stats.over_processes([*arm.gains.values()], is_disturbed))
    return sides[1].minus(sides[0]).exp()


def _difference(folders: tuple[Path, Path], sides: Sequence[pd.DataFrame]) -> str:
    """Say which parts of their questions two runs have no value of in common."""
    parts = []
    for name in QUESTION:
        old, new = (sorted({str(value).removesuffix(".0") or "none" for value in side[name]}) for side in sides)
        if not (old and new):
            return "one of them has no figure of time or memory"
        if not set(old) & set(new):
            label = name.replace("_", " ")
            parts.append(f"{label} {', '.join(old)} in '{folders[0]}' and {', '.join(new)} in '{folders[1]}'")
    return "; ".join(parts) or "they share each part of a question, but never all parts of one"


def _unreached(trials: Sequence[pd.DataFrame], new: Sequence[Run]) -> list[str]:
    """Say what OLD measured, and an unfinished run of NEW planned and has no row of."""
    phases = [metric.phase for metric in compared()]
    old = trials[0][trials[0]["status"].isin(MEASURED) & trials[0]["phase"].isin(phases)]
    names = ["cell", "phase", "precision"]
    measured, tried = (set(rows[names].itertuples(index=False, name=None)) for rows in (old, trials[1]))
    unfinished = [trial for run in new if run.info.get("finished", "") is None for trial in run.list("planned")]
    planned = {(trial["cell"], trial["phase"], arm) for trial in unfinished for arm in trial["arms"]}
    return [
        f"{cell}, {precision}: {phase} of OLD not measured in NEW, which is unfinished"
        for cell, phase, precision in sorted(planned & measured - tried)
    ]


def _lost(rows: Sequence[Row], new: pd.DataFrame) -> list[str]:
    """Say how often NEW failed where OLD was measured, and the first reason."""
    changes = [change for row in rows for change in row.changes.values() if change.verdict == "REGRESSED"]
    lost = [change.statuses[1] for change in changes if change.statuses[1] not in MEASURED]
    details = new.loc[new["status"].isin(lost) & new["detail"].ne(""), "detail"]
    why = f": {details.iloc[0]}" if len(details) else ""
    return [f"NEW failed in {counted(len(lost), 'figure')} that OLD has{why}."] if lost else []


def _apart(sides: Sequence[pd.DataFrame], tried: Sequence[pd.DataFrame]) -> list[str]:
    """Say what one side measured and the other did not try."""
    old, new, old_tried, new_tried = (
        set(side[QUESTION].itertuples(index=False, name=None)) for side in (*sides, *tried)
    )
    sentences = []
    for name, questions in (("OLD", old - new_tried), ("NEW", new - old_tried)):
        named = []
        for question in sorted(questions, key=str):
            row = dict(zip(QUESTION, question, strict=True))
            named.append(f"{row['suite']} on {row['placement']} batch {row['batch_size']:.0f} {row['precision']}")
        if named:
            sentences.append(f"Only in {name}: {enumerated(named)}.")
    return sentences
