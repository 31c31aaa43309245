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
from bench.compare.judge import IMPROVED, judge_together
from bench.report.analysis.changes import Contrast, estimate
from bench.report.analysis.comparability import cautions, environments
from bench.report.analysis.frame import numbers
from bench.report.analysis.summary import summarise
from bench.report.format import at_batch, counted, enumerated, known, records, titled, written
from bench.report.reading.completeness import remark
from bench.report.reading.folders import runs_in
from bench.report.reading.load import KEY, Run, load
from bench.results.records import MEASURED
from bench.spec.errors import UsageError
from bench.spec.metric import Metric
from bench.spec.metrics import SPEED, compared
from bench.stats import Interval

QUESTION = [name for name in KEY if name not in ("run", "architecture", "device")]
"""Columns in which two rows must agree to be compared: all that was asked, and not the device that answered."""
SIDES = ("old", "new")
LEAST_DAYS = 3
"""Days of each side from which its days are the samples."""
BETWEEN_DAYS = math.log1p(0.06)
"""With fewer, a change must exceed this, too: one machine's days differ by 2 to 3 % (results of the project's own)."""
LIMITS = (
    "A change of time or energy is shown only if its whole interval lies beyond the A/A noise (of energy 1 %) plus "
    f"6 %, because OLD or NEW has runs of fewer than {LEAST_DAYS} days, and a machine's days differ. To tell smaller "
    "changes, let compare measure both by turns: --interleave FOLDER, with suites' files, checkouts or environments "
    "as OLD and NEW."
)
Pair = Mapping[Hashable, Any]
"""A row of the summary of each side, of one question."""


@dataclass(kw_only=True, slots=True)
class Change:
    """How one metric of one row changed from OLD to NEW."""

    metric: Metric
    statuses: tuple[str, ...]
    values: tuple[float | None, ...]
    contrast: Contrast | None = None
    """NEW against OLD; None where the two do not compare."""
    verdict: str = "INCONCLUSIVE"
    """A word of ``judge.IMPROVED``: that of a contrast depends on the others."""
    is_beyond: bool = False
    """Whether the regression is shown beyond what ``--fail-over`` allows."""

    @property
    def interval(self) -> Interval | None:
        """NEW ÷ OLD, or NEW − OLD, with its 95 % interval; of memory with what its resolution leaves open."""
        if self.contrast is None:
            return None
        shown = self.contrast.shown
        is_exact = self.metric.replicate == "once" and shown.low == shown.high
        return replace(shown, low=None, high=None) if is_exact else shown

    @property
    def is_shown(self) -> bool:
        """Whether it is a change for better or worse."""
        return self.verdict in ("REGRESSED", "IMPROVED")

    @property
    def says_something(self) -> bool:
        """Whether both have a figure, or one of them lost or gained it."""
        return self.is_shown or None not in self.values

    @property
    def gain(self) -> float:
        """The change on the additive scale: below 0 is worse; infinitely so where it no longer works."""
        return self.contrast.change.center if self.contrast else -math.inf

    def __str__(self) -> str:
        if self.contrast is None or self.interval is None:
            return "not comparable" if set(self.statuses) <= set(MEASURED) else " → ".join(self.statuses)
        return written(self.metric, self.interval.ends) if self.contrast.is_resolvable else "too small to be resolved"


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
        devices = " → ".join(dict.fromkeys(self.devices))
        return f"{recipe(self.question)} on {devices} ({self.question['placement']})"

    def __str__(self) -> str:
        return f"{self.subject}{at_batch(self.question)}, {self.question['precision']}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two runs, or runs of two folders, side by side."""

    old: Sequence[Run]
    new: Sequence[Run]
    rows: list[Row]
    cautions: list[str]
    """Sentences on what the runs cannot tell, on what is missing, and on differences that are not compared."""
    environment: list[tuple[str, str, str]]
    """The differences of the environments: the name, and its value in OLD and in NEW."""
    apart: list[str]
    """Sentences on rows that only one of the two has, or has measured."""
    unreached: list[str]
    """Sentences on runs of NEW that are unfinished and lack trials of their plan."""
    fail_over: float | None = None
    """The share that a regression may have, or None."""

    @property
    def untestable(self) -> int:
        """Rows timed on both sides whose change has no interval, as after a single process: none can be shown."""
        speeds = [row.changes["speed"].contrast for row in self.rows if "speed" in row.changes]
        return sum(contrast is not None and contrast.change.low is None for contrast in speeds)

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
        """One sentence that counts what did not change."""
        rest = sum(not change.is_shown for _, change in self.changes)
        return f"No change is shown in {rest} of {counted(len(self.changes), 'figure')}."

    @property
    def summary(self) -> str:
        """One sentence on all rows."""
        counts = Counter(change.verdict for _, change in self.changes)
        words = ", ".join(f"{word} in {counts[word]}" for word in IMPROVED if counts[word])
        return f"NEW against OLD, {counted(len(self.rows), 'row')} compared, of their figures {words}."


def recipe(question: Pair) -> str:
    """Return the suite with what was changed of it."""
    return titled(question["suite"], question["parameters"], question["techniques"])


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
    if by_turns and (why := _out_of_turn(*sides)):
        raise UsageError(f"'{old}' and '{new}' did not take turns: {why}. Leave out --by-turns.")
    trials = [_pooled(runs.trials, side, name, by_turns) for side, name in zip(sides, ("OLD", "NEW"), strict=True)]
    tables = [summarise(rows) for rows in trials]
    apart = _apart(tables)
    rows = _rows(tables, fail_over, by_turns)
    if not any(change.says_something for row in rows for change in row.changes.values()):
        raise UsageError(
            " ".join(("The two runs have no measured cell and precision in common. Measure the same in both.", *apart))
        )
    contrasts = [change.contrast for row in rows for change in row.changes.values()]
    is_limited = any(contrast is not None and contrast.allowance > 0 for contrast in contrasts)
    return Comparison(
        old=sides[0],
        new=sides[1],
        rows=rows,
        cautions=[LIMITS] * is_limited + cautions(runs),
        environment=environments(runs, sides),
        apart=[*_lost(rows, trials[1]), *apart],
        unreached=_unreached(sides[1]),
        fail_over=fail_over,
    )


def _out_of_turn(old: Sequence[Run], new: Sequence[Run]) -> str:
    """Say why runs did not take turns: a pair is one of each side; empty if they did, or where no start is known."""
    if len(old) != len(new):
        return "they have different numbers of runs"
    runs = sorted([*old, *new], key=_start)
    for first, second in zip(runs[::2], runs[1::2], strict=True):
        if (first in old) == (second in old) and _start(first) != _start(second):
            name = "OLD" if first in old else "NEW"
            return f"two runs of {name} follow each other, at {_start(first)} and {_start(second)}"
    return ""


def _start(run: Run) -> str:
    return str(run.info.get("started") or "")


def _pooled(trials: pd.DataFrame, runs: Sequence[Run], name: str, by_turns: bool) -> pd.DataFrame:
    """Return the rows of a side's runs as of one run; ``of_run`` is a row's sample: by turns its run, else its day."""
    in_order = enumerate(sorted(runs, key=_start))
    samples = {run.label: turn if by_turns else _start(run)[:10] for turn, run in in_order}
    rows = trials[trials["run"].isin(samples)]
    labels = rows["run"].astype(str)
    names = labels + "/" + rows["trial"].astype(str)
    replicates = numbers(rows, ["run", "replicate"])
    return rows.assign(run=name, trial=names, replicate=replicates, of_run=labels.map(samples))


def _of(pair: Pair, name: str) -> list[Any]:
    """Return a column of the summary of OLD and of NEW; what is unknown is None."""
    values = [pair[f"{name}_{side}"] for side in SIDES]
    return [value if known(value) else None for value in values]


def _rows(tables: Sequence[pd.DataFrame], fail_over: float | None, by_turns: bool) -> list[Row]:
    """Return a row for each question that both sides tried; how many there are decides what of them is no chance.

    They are of one device; where the sides have no device in common, of any.
    """
    pairs = tables[0].merge(tables[1], on=QUESTION, suffixes=("_old", "_new"))
    is_same = pairs["device_old"] == pairs["device_new"]
    rows = []
    for pair in records(pairs[is_same | (not is_same.any())]):
        changes: dict[str, Change] = {}
        for metric in compared():
            change = _change(pair, metric, by_turns)
            if change is not None:
                changes[metric.name] = change
        question: Pair = {name: pair[name] for name in QUESTION}
        devices = (pair["device_old"], pair["device_new"])
        if changes:
            rows.append(Row(question=question, devices=devices, changes=changes, speedup=_speedup(pair)))
    _judge([change for row in rows for change in row.changes.values()], fail_over)
    return rows


def _judge(changes: Sequence[Change], fail_over: float | None) -> None:
    """Set the verdicts of contrasts, and what is beyond ``fail_over``."""
    tested = [change for change in changes if change.contrast is not None]
    family = [change.contrast for change in tested if change.contrast is not None]
    for change, verdict in zip(tested, judge_together(family), strict=True):
        change.verdict = verdict
    if fail_over is None:
        return
    for change in changes:
        change.is_beyond = change.verdict == "REGRESSED"
    for change, verdict in zip(tested, judge_together(family, fail_over), strict=True):
        change.is_beyond = verdict == "REGRESSED"


def _change(pair: Pair, metric: Metric, by_turns: bool) -> Change | None:
    """Return how a metric changed, of contrasts without the verdict; None where there is nothing to say of it."""
    statuses = tuple(str(status or "") for status in _of(pair, metric.status))
    old, new = _of(pair, metric.arm)
    values = tuple(arm.figure(metric) if arm else None for arm in (old, new))
    change = Change(metric=metric, statuses=statuses, values=values)
    newly_diverging = _newly_diverging(pair, metric) if metric.seed_is_input else 0
    if old and new and not newly_diverging:
        contrast = estimate(metric, new, old)
        if contrast is not None:
            noises = [stats.ASSUMED_NOISE if share is None else share for share in _of(pair, "noise_ratio")]
            change.metric = contrast.metric
            change.contrast = _over_runs(replace(contrast, noise=max(noises)), by_turns)
            return change
    if not (old or new):
        return None
    was, is_now = (status in MEASURED for status in statuses)
    if was and is_now and newly_diverging:
        was = newly_diverging > 0
        change.statuses = ("ok", "diverged") if was else ("diverged", "ok")
    elif was == is_now:
        return change if was and None not in values else None
    elif not all(statuses):
        return None
    elif "invalid" in statuses:  # a row that was disturbed says nothing
        return change
    change.verdict = "REGRESSED" if was else "IMPROVED"
    return change


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


def _newly_diverging(pair: Pair, metric: Metric) -> int:
    """Return how many seeds diverged in NEW that did not in OLD; negative where it is the other way round."""
    old, new = (seeds or frozenset() for seeds in _of(pair, "diverged_seeds"))
    was, is_now = (set(arm.seeds) if arm else set() for arm in _of(pair, metric.arm))
    return len(new & was) - len(old & is_now)


def _speedup(pair: Pair) -> Interval | None:
    """Return the change of the speedup over fp32, with an interval over processes whatever the runs."""
    sides = []
    for arm in _of(pair, SPEED.arm):
        if not arm or not arm.gains:
            return None
        is_disturbed = [process in arm.disturbed for process in arm.gains]
        sides.append(stats.over_processes([*arm.gains.values()], is_disturbed))
    return sides[1].minus(sides[0]).exp()


def _unreached(new: Sequence[Run]) -> list[str]:
    """Return a sentence on each run of NEW that is unfinished and lacks trials of its plan."""
    return [remark(run) for run in new if run.missing and run.info.get("finished", "") is None]


def _lost(rows: Sequence[Row], new: pd.DataFrame) -> list[str]:
    """Say how often NEW failed where OLD was measured, and the first reason."""
    changes = [change for row in rows for change in row.changes.values() if change.is_shown]
    lost = [change.statuses[1] for change in changes if change.statuses[1] not in MEASURED]
    if not lost:
        return []
    details = new.loc[new["status"].isin(lost), "detail"]
    return [f"NEW failed in {counted(len(lost), 'figure')} that OLD has: {''.join(details.head(1)) or 'diverged'}."]


def _apart(tables: Sequence[pd.DataFrame]) -> list[str]:
    """Say what one side measured and the other did not try."""
    figures = [metric.figure for metric in compared()]
    sentences = []
    old, new = tables
    for name, side, other in (("OLD", old, new), ("NEW", new, old)):
        tried = set(other[QUESTION].itertuples(index=False, name=None))
        named = []
        for row in records(side[side[figures].notna().any(axis=1)]):
            if tuple(row[name] for name in QUESTION) not in tried:
                named.append(f"{recipe(row)} on {row['placement']} batch {row['batch_size']:.0f} {row['precision']}")
        if named:
            sentences.append(f"Only in {name}: {enumerated(sorted(named))}.")
    return sentences
