"""Runs against earlier runs of the same questions: what improved, regressed or stayed the same.

Each side is a run or several. Of times and energy the samples are pairs of runs that took turns, or
the days of runs where each side has three; with fewer they are processes, and a change must exceed
what a machine's days differ by. Memory, and seeds of all runs alike, do not depend on the day.
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
from bench.report.analysis.arms import Arm
from bench.report.analysis.changes import Contrast, estimate
from bench.report.analysis.comparability import cautions, remark
from bench.report.analysis.summary import summarise
from bench.report.format import (
    at_batch,
    counted,
    enumerated,
    known,
    records,
    source,
    titled,
    written,
)
from bench.report.reading.folders import runs_in
from bench.report.reading.load import KEY, Run, load
from bench.results.records import MEASURED
from bench.spec.errors import UsageError
from bench.spec.metric import Metric
from bench.spec.metrics import SPEED, compared
from bench.stats import Interval

# Columns in which two rows must agree to be compared: all that was asked, and not the device that
# answered.
QUESTION = [name for name in KEY if name not in ("run", "architecture", "device")]
SIDES = ("old", "new")
# Days of each side from which its days are the samples.
LEAST_DAYS = 3
# With fewer, a change must exceed this, too: one machine's days differ by 2 to 3 % (results of the
# project's own).
BETWEEN_DAYS = math.log1p(0.06)
LIMITS = (
    "A change of time or energy is shown only if its whole interval lies beyond the A/A noise (of "
    f"energy 1 %) plus 6 %, because OLD or NEW has runs of fewer than {LEAST_DAYS} days, and a "
    "machine's days differ. To tell smaller changes, let compare measure both by turns: "
    "--interleave FOLDER, with suites' files, checkouts or environments as OLD and NEW."
)
NEEDS = (
    "both sides need two processes (leave out --quick), or two pairs of runs that took turns "
    "(--pairs), for energy two trials, for accuracy and loss five seeds."
)
# A row of the summary of each side, of one question.
Pair = Mapping[Hashable, Any]


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
        """NEW ÷ OLD, or NEW − OLD, with its 95 % interval; none where equal readings leave none.

        Of memory the interval is what its resolution leaves open.
        """
        if self.contrast is None:
            return None
        shown = self.contrast.shown
        if shown.low == shown.high:
            return replace(shown, low=None, high=None)
        return shown

    @property
    def is_shown(self) -> bool:
        """Whether it is a change for better or worse."""
        return self.verdict in ("REGRESSED", "IMPROVED")

    @property
    def is_judged(self) -> bool:
        """Whether there are enough samples to tell a change by; a single process is not."""
        if self.contrast is None:
            return self.is_shown
        change = self.contrast.change
        return change.error is None or change.n >= self.metric.fewest

    def __str__(self) -> str:
        if self.contrast is None or self.interval is None:
            if set(self.statuses) <= set(MEASURED):
                return "not comparable"
            return " → ".join(self.statuses)
        if not self.contrast.is_resolvable:
            return "too small to be resolved"
        return written(self.metric, self.interval.ends)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One precision of one cell in both."""

    question: Pair
    """Its values of ``QUESTION``."""
    devices: tuple[str, str]
    changes: Mapping[str, Change]
    """By the metric's name; without those that either side has nothing of."""

    @property
    def subject(self) -> str:
        """The recipe with what was changed of it, and the device; both where they differ."""
        question = self.question
        recipe = titled(question["suite"], question["parameters"], question["techniques"])
        devices = " → ".join(dict.fromkeys(self.devices))
        return f"{recipe} on {devices} ({question['placement']})"

    def __str__(self) -> str:
        return f"{self.subject}{at_batch(self.question)}, {self.question['precision']}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two runs, or runs of two folders, side by side."""

    old: list[str]
    """The names of OLD's runs."""
    new: list[str]
    rows: list[Row]
    cautions: list[str]
    """Sentences on what the runs cannot tell, on what is missing, and on differences that are not
    compared."""
    apart: list[str]
    """Sentences on rows that only one of the two has, or has measured."""
    unreached: list[str]
    """Sentences on runs of NEW that are unfinished."""
    fail_over: float | None = None
    """The share that a regression may have, or None."""

    @property
    def changes(self) -> list[Change]:
        """The changes of all rows."""
        changes: list[Change] = []
        for row in self.rows:
            changes += row.changes.values()
        return changes

    @property
    def is_judged(self) -> bool:
        """Whether any step's time could be judged; where none was timed on both sides, anything."""
        timed = [change for change in self.changes if change.metric == SPEED and change.contrast]
        # What memory says does not stand for a step's time that nobody could judge.
        return any(change.is_judged for change in timed or self.changes)

    @property
    def failures(self) -> list[str]:
        """The regressions shown beyond ``fail_over``, and what NEW did not reach.

        None where nothing was asked.
        """
        if self.fail_over is None:
            return []
        failures = []
        for row in self.rows:
            for name, change in row.changes.items():
                if change.is_beyond:
                    failures.append(f"{row}: {name} {change}")
        # A run that stopped early may have missed any regression.
        return [*failures, *self.unreached]

    @property
    def summary(self) -> str:
        """One sentence on all rows."""
        counts = Counter(change.verdict for change in self.changes)
        parts = [f"{counts[word]} {word}" for word in IMPROVED if counts[word]]
        rows = counted(len(self.rows), "row")
        return f"NEW against OLD: {rows} compared; their figures: {', '.join(parts)}."


def compare(
    old: Path, new: Path, fail_over: float | None = None, *, by_turns: bool = False
) -> Comparison:
    """Hold ``new`` against ``old``, for every cell and precision that both have.

    IMPROVED and REGRESSED require the 95 % interval to clear the A/A noise (of other metrics than
    speed: the metric's margin), and with runs of few days 6 % more, and control the false discovery
    rate over all rows at 5 % (``stats.discoveries``).

    Args:
        old: a run, or a folder of runs.
        new: the same.
        fail_over: the share beyond which a regression is listed in ``failures``.
        by_turns: whether runs of both took turns, as ``interleave`` measures: the first of each
            side are a pair, and so on.

    Raises:
        UsageError: there is no run or one cannot be read, both have the same run, or they have no
            question in common.
    """
    of_old, of_new = runs_in([old]), runs_in([new])
    if set(of_old) & set(of_new):
        raise UsageError(f"'{old}' and '{new}' have the same run. Give two.")
    runs = load([*of_old, *of_new])
    # Loaded together, so that what differs between them is a caution, and rows that are equal have
    # equal keys.
    old_runs = [run for run in runs.runs if run.folder in of_old]
    new_runs = [run for run in runs.runs if run.folder in of_new]
    for side, of_side in ((old, old_runs), (new, new_runs)):
        if not of_side:
            raise UsageError(f"No run in '{side}' has a finished trial. Finish one with --resume.")
    trials = runs.tried()
    # The steps of a ladder, whichever techniques they add, are of one question.
    is_step = trials["ablation"] == "yes"
    trials = trials.assign(techniques=trials["techniques"].mask(is_step, "ladder"))
    old_rows = summarise(_pooled(trials, old_runs, by_turns))
    new_rows = summarise(_pooled(trials, new_runs, by_turns))
    apart = _apart(old_rows, new_rows)
    rows = _rows(old_rows, new_rows, by_turns)
    changes = [change for row in rows for change in row.changes.values()]
    _judge(changes, fail_over)
    if not any(change.is_shown or None not in change.values for change in changes):
        reason = "The two runs have no measured cell and precision in common."
        advice = "Measure the same in both, or set different ones side by side by `report OLD NEW`."
        raise UsageError(" ".join([reason, advice, *apart]))
    warnings = cautions(runs)
    if any(change.contrast and change.contrast.allowance for change in changes):
        warnings.insert(0, LIMITS)
    new_labels = [run.label for run in new_runs]
    return Comparison(
        old=[run.label for run in old_runs],
        new=new_labels,
        rows=rows,
        cautions=warnings,
        apart=[*_lost(changes, trials[trials["run"].isin(new_labels)]), *apart],
        unreached=[remark(run) for run in new_runs if not run.is_finished],
        fail_over=fail_over,
    )


def _start(run: Run) -> str:
    return str(run.info.get("started") or "")


def _pooled(trials: pd.DataFrame, runs: Sequence[Run], by_turns: bool) -> pd.DataFrame:
    """Return the rows of a side's runs as of one run.

    ``of_run`` is a row's sample: by turns its run, else its day.
    """
    samples: dict[str, int | str] = {}
    for turn, run in enumerate(sorted(runs, key=_start)):
        samples[run.label] = turn if by_turns else _start(run)[:10]
    rows = trials[trials["run"].isin(samples)]
    names = rows["run"]
    return rows.assign(run="", trial=names + "/" + rows["trial"], of_run=names.map(samples))


def _rows(old: pd.DataFrame, new: pd.DataFrame, by_turns: bool) -> list[Row]:
    """Return a row for each question that both sides tried.

    They are of one device; where the sides have no device in common, of any.
    """
    pairs = old.merge(new, on=QUESTION, suffixes=("_old", "_new"))
    # A fleet of several models has each compared with itself, and never with another.
    is_same = pairs["device_old"] == pairs["device_new"]
    if is_same.any():
        pairs = pairs[is_same]
    rows = []
    for pair in records(pairs):
        changes = _changes(pair, by_turns)
        if changes:
            question: Pair = {name: pair[name] for name in QUESTION}
            devices = (pair["device_old"], pair["device_new"])
            rows.append(Row(question=question, devices=devices, changes=changes))
    return rows


def _changes(pair: Pair, by_turns: bool) -> dict[str, Change]:
    """Return the change of each metric that there is something to say of, by its name."""
    changes = {}
    for metric in compared():
        change = _change(pair, metric, by_turns)
        if change is not None:
            changes[metric.name] = change
    return changes


def _of(pair: Pair, name: str) -> list[Any]:
    """Return a column of the summary of OLD and of NEW; what is unknown is None."""
    values = []
    for side in SIDES:
        value = pair[f"{name}_{side}"]
        values.append(value if known(value) else None)
    return values


def _change(pair: Pair, metric: Metric, by_turns: bool) -> Change | None:
    """Return how a metric changed; None where there is nothing to say of it.

    The verdict on a contrast is not in it yet.
    """
    statuses = _statuses(pair, metric)
    was, is_now = (status in MEASURED for status in statuses)
    old, new = _of(pair, metric.arm)
    values = tuple(arm.figure(metric) if arm else None for arm in (old, new))
    change = Change(metric=metric, statuses=statuses, values=values)
    if was and is_now:
        if not (old and new):
            return None
        contrast = estimate(metric, new, old)
        if contrast is not None:
            # A change must clear the noise of the noisier side.
            noises = []
            for share in _of(pair, "noise_ratio"):
                noises.append(stats.ASSUMED_NOISE if share is None else share)
            change.metric = contrast.metric
            change.contrast = _over_runs(replace(contrast, noise=max(noises)), by_turns)
        return change
    if not (old or new) or not all(statuses):
        return None
    if "invalid" not in statuses:  # a row that was disturbed says nothing
        change.verdict = "REGRESSED" if was else "IMPROVED"
    return change


def _statuses(pair: Pair, metric: Metric) -> tuple[str, str]:
    """Return how OLD and NEW ended.

    Of what is learned, the side in which more seeds diverged has diverged.
    """
    was, is_now = (str(status or "") for status in _of(pair, metric.status))
    old, new = _of(pair, metric.arm)
    if not metric.seed_is_input or was not in MEASURED or is_now not in MEASURED:
        return was, is_now
    lost_old, lost_new = _of(pair, "diverged_seeds")
    # Only seeds that the other side was trained with count.
    before = _in_both(lost_old, new)
    after = _in_both(lost_new, old)
    if after > before:
        return "ok", "diverged"
    if after < before:
        return "diverged", "ok"
    return was, is_now


def _in_both(diverged: set[int] | None, other: Arm | None) -> int:
    """Return how many of a side's diverged seeds the other side was trained with."""
    if not diverged or other is None:
        return 0
    return len(diverged.intersection(other.seeds))


def _over_runs(contrast: Contrast, by_turns: bool) -> Contrast:
    """Return the change with the runs of times and energy as its samples, where there are enough.

    Other changes are returned as they are, those of time and energy with the allowance for days.
    """
    if contrast.metric.replicate != "process":
        return contrast
    metric = contrast.metric
    new = _by_run(contrast.arm, metric)
    old = _by_run(contrast.against, metric)
    if by_turns:
        # The runs of a pair share their minutes, so what differs by the day cancels.
        pairs = (new - old).dropna().tolist()
        if pairs:
            return replace(contrast, change=stats.student(pairs))
        # Without a pair, the estimate has no sample.
        return replace(contrast, change=stats.around(contrast.change.center, 0.0, 1.0, 0))
    if min(len(new), len(old)) >= LEAST_DAYS:
        return replace(contrast, change=stats.welch(new.tolist(), old.tolist()))
    if metric.scale == "ratio":
        return replace(contrast, allowance=BETWEEN_DAYS)
    return contrast


def _by_run(arm: Arm, metric: Metric) -> pd.Series:
    """Return the mean of each run, or day, over the processes that count, on the additive scale."""
    values = pd.Series(arm.additive(metric), list(arm.runs))
    return values[arm.counted].groupby(level=0).mean()


def _lost(changes: Sequence[Change], new: pd.DataFrame) -> list[str]:
    """Say how often NEW failed where OLD was measured, and the first reason."""
    lost = []
    for change in changes:
        if change.verdict == "REGRESSED" and change.contrast is None:
            lost.append(change.statuses[1])
    if not lost:
        return []
    details = new.loc[new["status"].isin(lost), "detail"]
    reason = "".join(details.head(1)) or "diverged"  # of which a row has no detail
    return [f"NEW failed in {counted(len(lost), 'figure')} that OLD has: {reason}."]


def _judge(changes: Sequence[Change], fail_over: float | None) -> None:
    """Set the verdicts of contrasts, and what is beyond ``fail_over``.

    What NEW lost, which has no contrast, is beyond it, too.
    """
    tested = [change for change in changes if change.contrast]
    family = [change.contrast for change in tested if change.contrast]
    # Together, because the more changes are tested, the more of them are chance.
    for change, verdict in zip(tested, judge_together(family), strict=True):
        change.verdict = verdict
    if fail_over is None:
        return
    for change in changes:
        change.is_beyond = change.verdict == "REGRESSED"
    for change, verdict in zip(tested, judge_together(family, fail_over), strict=True):
        change.is_beyond = verdict == "REGRESSED"


def _apart(old: pd.DataFrame, new: pd.DataFrame) -> list[str]:
    """Say what one side tried and the other did not."""
    in_old, in_new = _named(old), _named(new)
    sentences = []
    for name, only in (("OLD", in_old - in_new), ("NEW", in_new - in_old)):
        if only:
            sentences.append(f"Only in {name}: {enumerated(sorted(only))}.")
    return sentences


def _named(rows: pd.DataFrame) -> set[str]:
    """Return all of each row's question in words."""
    names = set()
    for row in records(rows):
        title = titled(row["suite"], row["parameters"], row["techniques"], source(row["data"]))
        where = f"{row['placement']}{at_batch(row, ' batch ')}"
        names.add(f"{title} on {where} {row['precision']}")
    return names
