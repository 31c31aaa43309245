"""The ladder in words: what each technique brings on top of the ones below, as a table and a sentence."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from itertools import compress
from typing import Any

from bench import stats
from bench.report.analysis.ablation import NOTHING, Climbed
from bench.report.analysis.verdict import Sentence
from bench.report.tables.format import MIB, UNKNOWN, known, number, ratio, records, signed
from bench.report.tables.tables import Table, table
from bench.results.records import MEASURED
from bench.spec.precisions import BASELINE
from bench.stats import Interval

Row = dict[Hashable, Any]
ABOUT = (
    "Each rung stands on the one before that works; one that does not is left out of those above. All were timed in "
    "one process in turn, fed by worker processes that decode and augment images one by one, as a usual training loop "
    'is; where they do not fit into memory together, each by itself, "apart". Time per epoch is the step\'s time, '
    "loading included, times the steps of an epoch. Over the rung before is over the one that it stands on. "
    "Intervals are 95 %, over processes, or within the only one. Peak memory is of each rung alone in one process, "
    "and has none. Waiting is the share of the timed steps in which the host waited for the loader to make a batch and "
    "to be handed it. The loader alone is what it takes for a batch when nothing else runs. Limited by: loader, where "
    "the host waits for batches not made yet for 10 % or more of a run of this rung alone, so that faster arithmetic "
    "gains little or nothing; "
    "launch, where the host takes 80 % of the time that the GPU does to queue its kernels; else arithmetic, which is "
    "all that the device does in a step, memory traffic included. Accuracy is that of the run's training at this "
    "batch size of what the rung computes, which set-to-none, non-blocking and prefetcher do not change. The verdict "
    "advises the lowest rung that is shown to beat fp32 and that no higher one is shown to beat, by the interval of "
    "the two: a gain is shown where the whole interval lies beyond the floor"
)
ROOM = ("stands on", "step (ms)", "measured in", "loader alone (ms)")
"""Columns that only the page has room for."""
LIMITS = {
    "loader": "there the loader is the limit, not arithmetic",
    "launch": "there launching kernels is the limit, not arithmetic",
    "arithmetic": "there arithmetic is the limit, not the loader",
    "launch or arithmetic": "there the loader is not the limit",
}


def table_of(ladder: Climbed) -> Table:
    """Return a ladder's table."""
    headers = ["rung", "stands on", "time/epoch (s)", "step (ms)", "over fp32 [95 % interval]"]
    headers += ["over the rung before [95 % interval]", "measured in", "peak memory (MiB)", "waiting for data (%)"]
    headers += ["loader alone (ms)", "limited by", "test accuracy (%)", "status"]
    body = []
    for row in records(ladder.rows):
        status = str(row["status"])
        body.append(
            [
                str(row["added"]),
                str(row["stands_on"]),
                number(row["epoch_s"]),
                number(row["step_ms"]),
                "baseline" if row["added"] == BASELINE and known(row["step_ms"]) else written(row["over_first"]),
                written(row["over_last"]),
                str(row["measured_in"]),
                number(row["memory_bytes"] / MIB),
                number(row["wait_pct"], 2),
                number(row["loader_ms"]),
                str(row["limit"]),
                _accuracy(row),
                # Where an error was raised is told in the notes.
                f"{status}: {cause}" if (cause := _cause(row)) and status not in MEASURED else status,
            ]
        )
    return table("Rungs", headers, body, about=f"{ABOUT}, {_floor(ladder)}.")


def _floor(ladder: Climbed) -> str:
    share = f"{100 * ladder.floor:.1f} %"
    if ladder.measured_floor is None:
        return f"assumed to be {share}"
    return f"here {share}, which is how far fp32 was from itself on batches already on the device"


def short(ladder: Climbed) -> Table:
    """Return a ladder's table without what a terminal has no room for."""
    made = table_of(ladder)
    kept = [header not in ROOM for header in made.headers]
    rows = [list(compress(row, kept)) for row in made.rows]
    return replace(made, title=ladder.name, headers=list(compress(made.headers, kept)), rows=rows)


def written(found: Interval | None) -> str:
    """Write a ratio with its interval, or that it has none."""
    if found is None:
        return UNKNOWN
    bounded = known(found.low) and known(found.high)
    return ratio(found.center, found.low, found.high) if bounded else f"{ratio(found.center)} (no interval)"


def _cause(row: Row) -> str:
    return str(row["detail"]).partition(" | ")[0]


def _accuracy(row: Row) -> str:
    if not row["trained"]:
        return "not trained"
    found = row["accuracy"]
    if found is None:
        return UNKNOWN if row["trained"] in MEASURED else str(row["trained"])
    if found.low is None:
        return f"{found.center:.2f} (one seed, no interval)"
    return f"{found.center:.2f} [{found.low:.2f}, {found.high:.2f}]"


def sentence(ladder: Climbed) -> Sentence:
    """Say how far up the ladder it pays to climb, and which rung brings most."""
    subject = f"ladder of {ladder.title}"
    timed = [row for row in records(ladder.rows) if row["over_first"] is not None]
    if not timed:
        return Sentence(subject=subject, advice="no verdict", evidence="no rung was timed beside fp32")
    faster = [row for row in timed if _faster(ladder, row["over_first"])]
    if faster:
        rung = _lowest_unbeaten(ladder, faster)
        found = f"{_over_fp32(ladder, rung)}{_memory(ladder, rung)}; {LIMITS[rung['limit']]}"
        evidence = found + _fastest(ladder, faster, rung) + _brings(ladder, timed)
        return Sentence(subject=subject, advice=f"climb to {rung['added']}", evidence=evidence)
    top = max(timed, key=lambda row: row["over_first"].center)
    found = f"the fastest rung, {top['added']}, is {_over_fp32(ladder, top)}; {LIMITS[top['limit']]}"
    found += _brings(ladder, timed)
    if all(_no_gain(row["over_first"]) for row in timed):
        return Sentence(subject=subject, advice="stay with fp32", evidence=f"nothing gains: {found}")
    return Sentence(subject=subject, advice="no verdict", evidence=f"its intervals are too wide to say: {found}")


def _lowest_unbeaten(ladder: Climbed, faster: list[Row]) -> Row:
    """Return the lowest of the rungs that beat fp32 that none above it is shown to beat; nothing is above the last."""

    def beaten(place: int) -> bool:
        above = (ladder.gains[faster[place]["rung"], higher["rung"]][0] for higher in faster[place + 1 :])
        return any(_faster(ladder, gain) for gain in above)

    return next(row for place, row in enumerate(faster) if not beaten(place))


def _fastest(ladder: Climbed, faster: list[Row], rung: Row) -> str:
    """Name the fastest rung where that is one above the one that is advised."""
    top = max(faster, key=lambda row: row["over_first"].center)
    gain, _ = ladder.gains.get((rung["rung"], top["rung"]), NOTHING)
    return "" if gain is None else f"; the fastest, {top['added']}, is not shown to beat it ({written(gain)}×)"


def _brings(ladder: Climbed, timed: list[Row]) -> str:
    """Name the rung that brings most on the one before, where that is beyond doubt."""
    gains = [row for row in timed if _faster(ladder, row["over_last"])]
    if not gains:
        return "; no rung is known to gain on the one before"
    best = max(gains, key=lambda row: row["over_last"].center)
    evidence = _evidence(ladder, best, best["over_last"], "the one before", best["measured_in"])
    return f"; the rung that brings most is {best['added']}, {evidence}"


def _over_fp32(ladder: Climbed, row: Row) -> str:
    return _evidence(ladder, row, row["over_first"], BASELINE, row["first_in"])


def _evidence(ladder: Climbed, row: Row, over: Interval, what: str, measured_in: str) -> str:
    """Write a rung's ratio over another, with the marks that a precision's verdict has."""
    marks = [str(stats.verdict(over, ladder.floor))]
    marks += [measured_in] if measured_in == "one process" or "apart" in measured_in else []
    marks += ["unconverged"] if row["status"] == "unconverged" else []
    return f"{written(over)}× as fast as {what} ({', '.join(marks)})"


def _no_gain(found: Interval) -> bool:
    return found.high is not None and found.high <= 1 + stats.MARGIN


def _faster(ladder: Climbed, found: Interval | None) -> bool:
    return found is not None and stats.verdict(found, ladder.floor) == "FASTER"


def _memory(ladder: Climbed, row: Row) -> str:
    if known(row["memory_change"]):
        return f" at {signed(100 * row['memory_change'], 0)} % peak memory"
    fp32 = ladder.rows.loc[ladder.rows["added"] == BASELINE, "memory_bytes"]
    return ", peak memory not told apart" if known(row["memory_bytes"]) and fp32.notna().any() else ""
