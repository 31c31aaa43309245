"""A table of each ablation, with the gain of each technique, and the step to stop at."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pandas as pd

from bench import stats
from bench.phases.speed.summary import measured_in, noises
from bench.report.analysis.arms import Arm, arms, numbered
from bench.report.analysis.changes import Contrast, estimate
from bench.report.analysis.judge import judge_speedups
from bench.report.analysis.summary import other_types
from bench.report.analysis.verdict import marked
from bench.report.document import interval
from bench.report.format import MIB, UNKNOWN, known, ratio, signed
from bench.report.parts import Finding, Findings, PhaseReport
from bench.report.reading.labels import subjects
from bench.report.reading.load import CELL, Runs
from bench.report.tables.table import (
    Entry,
    Material,
    Row,
    Table,
    make_table,
    number_column,
    text_column,
)
from bench.results.columns import listed
from bench.results.records import MEASURED
from bench.spec.metrics import MEMORY, SPEED
from bench.spec.precisions import BASELINE
from bench.spec.techniques import ArmSpec

SECTION = "Ladders"
ABOUT = (
    "Each ablation step adds one technique to the highest step below it that works. Steps are "
    "timed in turn in one process, on batches in host memory; where they do not fit into memory "
    'together, each by itself, "apart". Intervals are 95 %, over processes, or within the only '
    "one. Peak memory is of each alone, without an interval. The verdict advises the lowest step "
    "that is faster than fp32 and that no higher one is shown to beat. Of the gains that a ladder "
    "shows at most 5 % are expected to be chance. A gain is shown where the whole interval clears "
    "the A/A noise"
)
# The keys of a row that the JSON document has, too.
IN_DOCUMENT = (
    "added",
    "builds_on",
    "status",
    "detail",
    "step_ms",
    "peak_memory_bytes",
    "memory_change_ratio",
)
FP32 = ArmSpec(precision=BASELINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder:
    """An ablation: a suite on a device at a batch size."""

    title: str
    cell: tuple[Any, ...]
    """Its values of ``CELL``."""
    arms: Mapping[tuple[Any, ...], Arm]
    """The timings of all ablations, by their values of ``KEY``."""
    noise: float | None
    """The A/A noise at this batch size, as a share; None where it was not measured."""
    other_types: bool
    """Whether a step's products ran in another type than its precision's."""
    rows: list[Row]
    """The measurements of each step, the lowest step first.

    - step (an ``ArmSpec``), added, builds_on, status, detail
    - over_fp32, over_previous: contrasts of its speed, or None; word: the verdict on the first
    - step_ms, memory_bytes; memory_change: a share of fp32's, NaN where it is within the resolution
    """

    def gain(self, lower: ArmSpec | None, higher: ArmSpec) -> Contrast | None:
        """Return the speed of one step against a lower one's; None where one was not timed."""
        arm = self.arms.get((*self.cell, higher.name))
        against = self.arms.get((*self.cell, lower.name)) if lower else None
        if not (arm and against):
            return None
        contrast = estimate(SPEED, arm, against)
        return contrast and replace(contrast, noise=self.noise)


@lru_cache(maxsize=1)  # both findings and tables ask
def ladders(runs: Runs) -> list[Ladder]:
    """Return the ablations that the runs have measured."""
    if runs.ablations.empty:
        return []
    # A ladder's techniques are its steps, and its noise is that of fp32 with any techniques at its
    # batch size.
    without_techniques = numbered(runs.trials.assign(techniques=""))
    noise = noises(without_techniques)
    named = runs.ablations.merge(subjects(runs.ablations), how="left")
    trials = numbered(named)
    timed = {arm.key: arm for arm in arms(trials, SPEED).values()}
    peaks = {arm.key: arm for arm in arms(trials, MEMORY).values()}
    found = []
    for cell, rows in trials.groupby(CELL, sort=False):
        first = rows.iloc[0]
        by_precision = rows.assign(precision=rows["arm_precision"])
        types = other_types(by_precision)
        subject = f"{first['workload']} on {first['where']}"
        ladder = Ladder(
            title=f"{subject} at batch size {first['batch_size']:.0f}",
            cell=cell,
            arms=timed,
            noise=noise.get(cell),
            other_types=bool(types.notna().any()),
            rows=[],
        )
        steps = rows.groupby(["arm_precision", "arm_techniques"], sort=False)
        for (precision, techniques), of_step in steps:
            step = ArmSpec(precision=str(precision), techniques=listed(str(techniques)))
            ladder.rows.append(_row(ladder, step, of_step, peaks))
        ladder.rows.sort(key=lambda row: row["step"].rank)
        _judge(ladder.rows)
        found.append(ladder)
    return found


def _row(
    ladder: Ladder, step: ArmSpec, trials: pd.DataFrame, peaks: Mapping[tuple[Any, ...], Arm]
) -> Row:
    """Return what a step's trials say; ``peaks`` are the arms of memory, as ``Ladder.arms``."""
    is_measured = trials["status"].isin(MEASURED)
    is_speed = trials["phase"] == "speed"
    timed = trials[is_speed & is_measured & trials["step_ms"].gt(0)]
    over_fp32 = ladder.gain(FP32, step) if step != FP32 else None
    # Memory counts where it failed: its speed was then left out.
    is_memory_failure = ~is_measured & (trials["phase"] == "memory")
    status, detail = _outcome(trials[is_speed | is_memory_failure])
    if status == "ok" and over_fp32 is not None and over_fp32.change.half_width is not None:
        asked = timed["target_ci"].max()
        reached = math.expm1(over_fp32.change.half_width)
        if reached > asked:
            status = "unconverged"
            detail = f"the interval over processes is wider than ±{100 * asked:g} %"
    peak = peaks.get((*ladder.cell, step.name))
    of_fp32 = peaks.get((*ladder.cell, BASELINE))
    memory_change = math.nan
    if peak and of_fp32:
        change = estimate(MEMORY, peak, of_fp32)
        if change and change.is_resolvable:
            memory_change = change.shown.center - 1
    return {
        "step": step,
        "added": step.added,
        "builds_on": step.previous.added if step.previous else UNKNOWN,
        "status": status,
        "detail": detail,
        "step_ms": timed["step_ms"].median(),
        "over_fp32": over_fp32,
        "over_previous": ladder.gain(step.previous, step),
        "word": "",
        "peak_memory_bytes": peak.values.max() if peak else math.nan,
        "memory_change_ratio": memory_change,
    }


def _outcome(trials: pd.DataFrame) -> tuple[str, str]:
    """Return the status and the detail of a step's processes.

    One unconverged process makes a step unconverged. One that was not timed has the status of its
    last failure.
    """
    if trials.empty:
        return UNKNOWN, ""
    # Memory's failures, which come first in the plan, count where the speed phase was left out.
    order = trials["status"].map({"ok": 1, "unconverged": 2}).fillna(0)
    ordered = trials.assign(order=order).sort_values(["order", "phase"], kind="stable")
    last = ordered.iloc[-1]
    return str(last["status"]), str(last["detail"])


def _judge(rows: list[Row]) -> None:
    """Add the words; gains over fp32 and over a step below that is not fp32 count together."""
    judged = [row for row in rows if row["over_fp32"]]
    gains = [row["over_fp32"] for row in judged]
    for row in rows:
        if row["over_previous"] and row["step"].previous != FP32:
            gains.append(row["over_previous"])
    for row, word in zip(judged, judge_speedups(gains), strict=False):
        row["word"] = word


# The table.


def _gain(contrast: Contrast | None) -> str:
    """Write a speedup with its interval, or with "(no interval)"."""
    if contrast is None:
        return UNKNOWN
    center, low, high = contrast.gain.ends
    text = ratio(center, low, high)
    if low is None:
        text += " (no interval)"
    return text


def _over_fp32(row: Row) -> str:
    if row["step"] == FP32 and known(row["step_ms"]):
        return "baseline"
    return _gain(row["over_fp32"])


def _over_previous(row: Row) -> str:
    return _gain(row["over_previous"])


def _measured_in(row: Row) -> str:
    contrast = row["over_previous"]
    return measured_in(contrast) if contrast else ""


def _status(row: Row) -> str:
    """Return the status, with the cause of a failure; the notes have the traceback."""
    cause = row["detail"].partition(" | ")[0]
    if cause and row["status"] not in MEASURED:
        return f"{row['status']}: {cause}"
    return str(row["status"])


COLUMNS = (
    text_column("ablation step", "added"),
    text_column("builds on", "builds_on"),
    number_column("step (ms)", "step_ms"),
    number_column("over fp32 [95 % interval]", _over_fp32),
    number_column("over the one it builds on [95 % interval]", _over_previous),
    text_column("measured in", _measured_in),
    number_column("peak memory (MiB)", "peak_memory_bytes", per=MIB),
    text_column("status", _status),
)


def full(ladder: Ladder) -> Table | None:
    """Return an ablation's table."""
    noise = f"assumed to be {100 * stats.ASSUMED_NOISE:.1f} %"
    if ladder.noise is not None:
        noise = (
            f"here {100 * ladder.noise:.1f} %: how far fp32 measured against itself was from 1, "
            "on batches already on the device"
        )
    return make_table(f"Ladder of {ladder.title}", ladder.rows, COLUMNS, f"{ABOUT}, {noise}.")


# The verdict.


def verdict(ladder: Ladder) -> str:
    """Return the advice, which is the ablation step to stop at, with its evidence."""
    timed = [row for row in ladder.rows if row["over_fp32"]]
    if not timed:
        return "no verdict — nothing was timed together with fp32"
    faster = [row for row in timed if row["word"] == "FASTER"]
    fastest = max(faster or timed, key=lambda row: row["over_fp32"].gain.center)
    if faster:
        advised = _lowest_unbeaten(ladder, faster)
        text = f"go up to {advised['added']} — {_evidence(ladder, advised)}"
        if fastest is not advised:
            gain = _gain(ladder.gain(advised["step"], fastest["step"]))
            text += f"; the fastest, {fastest['added']}, is not shown to beat it ({gain}×)"
        return text
    why = "stay with fp32 — nothing gains"
    for row in timed:
        high = row["over_fp32"].gain.high
        if high is None or high > 1 + stats.MARGIN:
            why = "no verdict — the intervals are too wide"
    return f"{why}: the fastest, {fastest['added']}, is {_evidence(ladder, fastest)}"


def _lowest_unbeaten(ladder: Ladder, faster: list[Row]) -> Row:
    """Return the lowest step faster than fp32 that no higher one is shown to beat."""
    for place, lower in enumerate(faster):
        is_beaten = False
        for higher in faster[place + 1 :]:
            gain = ladder.gain(lower["step"], higher["step"])
            if gain and gain.word == "FASTER":
                is_beaten = True
        if not is_beaten:
            break
    return lower


def _evidence(ladder: Ladder, row: Row) -> str:
    """Write how fast a step is, with the caveats of ``marked``, and how much memory it takes."""
    word = row["word"] + (" ≠" if ladder.other_types else "")
    marks = marked(word, measured_in(row["over_fp32"]), row["status"])
    text = f"{_gain(row['over_fp32'])}× as fast as fp32 ({marks})"
    if known(row["memory_change_ratio"]):
        text += f" at {signed(100 * row['memory_change_ratio'], 0)} % peak memory"
    return text


# What the report takes.


def findings(material: Material) -> Iterator[Findings]:
    """Yield the verdicts, with the tables."""
    found = []
    for ladder in ladders(material.runs):
        subject = f"ladder of {ladder.title}"
        found.append(Finding(subject=subject, result=verdict(ladder), table=full(ladder)))
    yield Findings(findings=found)


def document(runs: Runs) -> dict[str, Any]:
    """Return the ablations as JSON has them."""
    return {"ablations": [_document(ladder) for ladder in ladders(runs)]}


def _document(ladder: Ladder) -> dict[str, Any]:
    steps = []
    for row in ladder.rows:
        step = {"step": row["step"].name, "precision": row["step"].precision}
        for name in IN_DOCUMENT:
            step[name] = row[name] if known(row[name]) else None
        for key, over in (("speedup", "over_fp32"), ("speedup_over_previous", "over_previous")):
            contrast = row[over]
            gain = contrast.gain if contrast else None
            step |= interval(key, gain)
        steps.append(step)
    return {"name": ladder.title, "noise_ratio": ladder.noise, "steps": steps}


REPORT = PhaseReport(
    tables=(Entry(30, SECTION, lambda material: map(full, ladders(material.runs))),),
    findings=findings,
    document=document,
)
