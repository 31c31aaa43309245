"""The ablation: what each technique adds to those below it, as a table and a verdict."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from bench import stats
from bench.report.analysis.ablation import AblationSummary
from bench.report.analysis.contrast import Contrast
from bench.report.analysis.judge import judge, judge_speedups
from bench.report.analysis.summary import measured_in
from bench.report.analysis.verdict import Verdict, marked
from bench.report.format import MIB, UNKNOWN, estimate, known, ratio, records, signed
from bench.report.tables.table import Entry, Row, Table, figures, table, words
from bench.results.records import MEASURED
from bench.spec.precisions import BASELINE
from bench.stats import Interval

SECTION = "Ladders"
ABOUT = (
    "Each ablation step adds one technique to the highest step below it that works. Steps are timed in turn in one "
    "process, on batches in host memory; where they do not fit into memory together, each by itself, "
    '"apart". Intervals are 95 %, over processes, or within the only one. Peak memory is of each alone, without an '
    "interval. Limited by: launch, where queueing kernels takes the host 80 % of the GPU's time; else arithmetic, "
    "memory traffic included. The verdict advises the lowest step that is faster than fp32 and that no higher one is "
    "shown to beat. Of the gains that a ladder shows at most 5 % are expected to be chance. A gain is shown where the "
    "whole interval clears the A/A noise"
)
LIMITS = {
    "launch": "limited by launching kernels, not by arithmetic",
    "arithmetic": "limited by arithmetic",
    "launch or arithmetic": "limited by launching kernels or by arithmetic",
}


def full(ladder: AblationSummary) -> Table | None:
    """Return an ablation's table."""
    return table(ladder.name, records(ladder.rows), COLUMNS, f"{ABOUT}, {_noise(ladder)}.")


def short(ladder: AblationSummary) -> Table | None:
    """Return an ablation's table without the columns of ``PAGE_ONLY``."""
    return table(ladder.name, records(ladder.rows), [column for column in COLUMNS if column.header not in PAGE_ONLY])


def _noise(ladder: AblationSummary) -> str:
    if ladder.measured_noise is None:
        return f"assumed to be {100 * stats.ASSUMED_NOISE:.1f} %"
    share = f"{100 * ladder.measured_noise:.1f} %"
    return f"here {share}: how far fp32 measured against itself was from 1, on batches already on the device"


def written(interval: Interval | None) -> str:
    """Write a ratio with its interval, or with "(no interval)"."""
    if interval is None:
        return UNKNOWN
    return estimate(interval) if known(interval.low) else f"{ratio(interval.center)} (no interval)"


def _status(row: Row) -> str:
    """Return the status, with the cause of a failure; the notes have the traceback."""
    cause = str(row["detail"]).partition(" | ")[0]
    return f"{row['status']}: {cause}" if cause and row["status"] not in MEASURED else str(row["status"])


def _ratio_to_fp32(row: Row) -> str:
    return "baseline" if row["added"] == BASELINE and known(row["step_ms"]) else written(row["over_first"])


COLUMNS = (
    words("ablation step", "added"),
    words("builds on", "builds_on"),
    figures("step (ms)", "step_ms"),
    figures("over fp32 [95 % interval]", _ratio_to_fp32),
    figures("over the one it builds on [95 % interval]", lambda row: written(row["over_last"])),
    words("measured in", lambda row: row["last"] and measured_in(row["last"])),
    figures("peak memory (MiB)", "memory_bytes", per=MIB),
    words("limited by", "limit"),
    words("status", _status),
)
PAGE_ONLY = ("builds on", "measured in")
"""Headers of columns that a terminal has no room for."""


def sentence(ladder: AblationSummary) -> Verdict:
    """Return the verdict: the ablation step to stop at, and the step with the largest gain."""
    subject = f"ladder of {ladder.title}"
    timed = [row for row in records(ladder.rows) if row["first"] is not None]
    if not timed:
        return Verdict(subject=subject, advice="no verdict", evidence="nothing was timed together with fp32")
    _judge(timed)
    top, faster = max(timed, key=_over_first), [row for row in timed if row["first_word"] == "FASTER"]
    if faster:
        advised = _lowest_unbeaten(ladder, faster)
        evidence = f"{_evidence(advised, 'first', BASELINE)}{_memory(ladder, advised)}; {LIMITS[advised['limit']]}"
        gain, top = ladder.gain(advised["step"], top["step"]), max(faster, key=_over_first)
        if gain is not None and top is not advised:
            evidence += f"; the fastest, {top['added']}, is not shown to beat it ({written(gain.gain)}×)"
        return Verdict(subject=subject, advice=f"go up to {advised['added']}", evidence=evidence + _largest_gain(timed))
    evidence = f"the fastest, {top['added']}, is {_evidence(top, 'first', BASELINE)}; {LIMITS[top['limit']]}"
    ends = [row["first"].gain.high for row in timed]
    is_none = all(high is not None and high <= 1 + stats.MARGIN for high in ends)
    advice, why = ("stay with fp32", "nothing gains") if is_none else ("no verdict", "the intervals are too wide")
    return Verdict(subject=subject, advice=advice, evidence=f"{why}: {evidence}{_largest_gain(timed)}")


def _judge(timed: list[dict[Hashable, Any]]) -> None:
    """Add the words for the speedups over fp32, and over the step below, to their rows; all are judged together."""
    gains = [(row, of) for row in timed for of in ("first", "last") if row[of] is not None]
    for (row, of), word in zip(gains, judge_speedups([row[of] for row, of in gains]), strict=True):
        row[f"{of}_word"] = word


def _over_first(row: Row) -> float:
    return float(row["over_first"].center)


def _lowest_unbeaten(ladder: AblationSummary, faster: Sequence[Row]) -> Row:
    """Return the lowest step faster than fp32 that no higher one is shown to beat, at the latest the last."""
    for position, row in enumerate(faster):
        gains = (ladder.gain(row["step"], higher["step"]) for higher in faster[position + 1 :])
        if not any(gain is not None and judge(gain) == "FASTER" for gain in gains):
            break
    return row


def _largest_gain(timed: Sequence[Row]) -> str:
    """Name the ablation step with the largest gain over the step it builds on, if that gain is shown."""
    gains = [row for row in timed if row.get("last_word") == "FASTER"]
    if not gains:
        return "; none is shown to gain on the one that it builds on"
    best = max(gains, key=lambda row: float(row["over_last"].center))
    return f"; the largest gain is that of {best['added']}, {_evidence(best, 'last', 'the one that it builds on')}"


def _evidence(row: Row, of: str, reference: str) -> str:
    """Write the first or the last speedup of a step over its reference, with the caveats of ``marked``."""
    contrast: Contrast = row[of]
    word = row[f"{of}_word"] + (" ≠" if row["has_other_types"] else "")
    marks = marked(word, measured_in(contrast), row["status"])
    return f"{written(contrast.gain)}× as fast as {reference} ({marks})"


def _memory(ladder: AblationSummary, row: Row) -> str:
    if known(row["memory_change"]):
        return f" at {signed(100 * row['memory_change'], 0)} % peak memory"
    fp32 = ladder.rows.loc[ladder.rows["added"] == BASELINE, "memory_bytes"]
    return ", peak memory not told apart" if known(row["memory_bytes"]) and fp32.notna().any() else ""


TABLES = (Entry(30, SECTION, lambda material: map(full, material.ladders)),)
