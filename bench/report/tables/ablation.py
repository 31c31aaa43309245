"""The ablation: what each technique adds to those below it, as a table and a verdict."""

from __future__ import annotations

from bench import stats
from bench.report.analysis.ablation import NOTHING, AblationSummary
from bench.report.analysis.verdict import Verdict, marked
from bench.report.format import MIB, UNKNOWN, estimate, known, ratio, records, signed
from bench.report.tables.table import Row, Table, figures, table, words
from bench.results.records import MEASURED
from bench.spec.precisions import BASELINE
from bench.stats import Interval

ABOUT = (
    "Each ablation step adds one technique to the highest step below it that works. Steps are timed in turn in one "
    "process, fed by worker processes as in a usual training loop; where they do not fit into memory together, each by "
    'itself, "apart". Time per epoch is the step\'s time, loading included, times the steps of an epoch. Intervals are '
    "95 %, over processes, or within the only one. Peak memory is of each alone in one process, without an interval. "
    "Waiting is the share of the timed steps spent waiting for the loader; loader alone is its time for a batch when "
    "nothing else runs. Limited by: loader, where waiting takes 10 % or more of a run of this step alone; launch, "
    "where queueing kernels takes the host 80 % of the GPU's time; else arithmetic, memory traffic included. Accuracy "
    "is that of the run's training at this batch size with the same arithmetic. The verdict advises the lowest step "
    "that is faster than fp32 and that no higher one is shown to beat. A gain is shown where the whole interval clears "
    "the A/A noise"
)
LIMITS = {
    "loader": "limited by the loader, not by arithmetic",
    "launch": "limited by launching kernels, not by arithmetic",
    "arithmetic": "limited by arithmetic, not by the loader",
    "launch or arithmetic": "not limited by the loader",
}


def full(ladder: AblationSummary) -> Table | None:
    """Return an ablation's table."""
    return table("Ablation steps", records(ladder.rows), COLUMNS, f"{ABOUT}, {_noise(ladder)}.")


def short(ladder: AblationSummary) -> Table | None:
    """Return an ablation's table without the columns of ``PAGE_ONLY``."""
    return table(ladder.name, records(ladder.rows), [column for column in COLUMNS if column.header not in PAGE_ONLY])


def _noise(ladder: AblationSummary) -> str:
    share = f"{100 * ladder.noise:.1f} %"
    if ladder.measured_noise is None:
        return f"assumed to be {share}"
    return f"here {share}: how far fp32 measured against itself was from 1, on batches already on the device"


def written(interval: Interval | None) -> str:
    """Write a ratio with its interval, or with "(no interval)"."""
    if interval is None:
        return UNKNOWN
    return estimate(interval) if known(interval.low) else f"{ratio(interval.center)} (no interval)"


def _accuracy(row: Row) -> str:
    if not row["trained"]:
        return "not trained"
    interval = row["accuracy"]
    if interval is None:
        return UNKNOWN if row["trained"] in MEASURED else str(row["trained"])
    if interval.low is None:
        return f"{interval.center:.2f} (one seed, no interval)"
    return f"{interval.center:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def _status(row: Row) -> str:
    """Return the status, with the cause of a failure; the notes have the traceback."""
    cause = str(row["detail"]).partition(" | ")[0]
    return f"{row['status']}: {cause}" if cause and row["status"] not in MEASURED else str(row["status"])


def _ratio_to_fp32(row: Row) -> str:
    return "baseline" if row["added"] == BASELINE and known(row["step_ms"]) else written(row["over_first"])


COLUMNS = (
    words("ablation step", "added"),
    words("builds on", "builds_on"),
    figures("time/epoch (s)", "epoch_s"),
    figures("step (ms)", "step_ms"),
    figures("over fp32 [95 % interval]", _ratio_to_fp32),
    figures("over the one it builds on [95 % interval]", lambda row: written(row["over_last"])),
    words("measured in", "measured_in"),
    figures("peak memory (MiB)", "memory_bytes", per=MIB),
    figures("waiting for data (%)", "wait_pct", 2),
    figures("loader alone (ms)", "loader_ms"),
    words("limited by", "limit"),
    figures("test accuracy (%)", _accuracy),
    words("status", _status),
)
PAGE_ONLY = ("builds on", "step (ms)", "measured in", "loader alone (ms)")
"""Headers of columns that a terminal has no room for."""


def sentence(ladder: AblationSummary) -> Verdict:
    """Return the verdict: the ablation step to stop at, and the step with the largest gain."""
    subject = f"ladder of {ladder.title}"
    timed = [row for row in records(ladder.rows) if row["over_first"] is not None]
    if not timed:
        return Verdict(subject=subject, advice="no verdict", evidence="nothing was timed beside fp32")
    faster = [row for row in timed if _faster(ladder, row["over_first"])]
    if faster:
        advised = _lowest_unbeaten(ladder, faster)
        evidence = f"{_over_fp32(ladder, advised)}{_memory(ladder, advised)}; {LIMITS[advised['limit']]}"
        evidence += _fastest(ladder, faster, advised) + _largest_gain(ladder, timed)
        return Verdict(subject=subject, advice=f"go up to {advised['added']}", evidence=evidence)
    top = max(timed, key=lambda row: row["over_first"].center)
    evidence = f"the fastest, {top['added']}, is {_over_fp32(ladder, top)}; {LIMITS[top['limit']]}"
    evidence += _largest_gain(ladder, timed)
    if all(row["over_first"].high is not None and row["over_first"].high <= 1 + stats.MARGIN for row in timed):
        return Verdict(subject=subject, advice="stay with fp32", evidence=f"nothing gains: {evidence}")
    return Verdict(subject=subject, advice="no verdict", evidence=f"the intervals are too wide: {evidence}")


def _lowest_unbeaten(ladder: AblationSummary, faster: list[Row]) -> Row:
    """Return the lowest step faster than fp32 that no higher one is shown to beat, at the latest the last."""
    for position, row in enumerate(faster):
        gains = [ladder.gains[row["step"], higher["step"]][0] for higher in faster[position + 1 :]]
        if not any(_faster(ladder, gain) for gain in gains):
            break
    return row


def _fastest(ladder: AblationSummary, faster: list[Row], advised: Row) -> str:
    """Name the fastest ablation step if it is above the advised one."""
    top = max(faster, key=lambda row: row["over_first"].center)
    gain, _ = ladder.gains.get((advised["step"], top["step"]), NOTHING)
    return "" if gain is None else f"; the fastest, {top['added']}, is not shown to beat it ({written(gain)}×)"


def _largest_gain(ladder: AblationSummary, timed: list[Row]) -> str:
    """Name the ablation step with the largest gain over the step it builds on, if that gain is shown."""
    gains = [row for row in timed if _faster(ladder, row["over_last"])]
    if not gains:
        return "; none is shown to gain on the one that it builds on"
    best = max(gains, key=lambda row: row["over_last"].center)
    evidence = _evidence(ladder, best, best["over_last"], "the one that it builds on", best["measured_in"])
    return f"; the largest gain is that of {best['added']}, {evidence}"


def _over_fp32(ladder: AblationSummary, row: Row) -> str:
    return _evidence(ladder, row, row["over_first"], BASELINE, row["first_in"])


def _evidence(ladder: AblationSummary, row: Row, speedup: Interval, reference: str, measured_in: str) -> str:
    """Write a speedup over a reference, with the caveats of ``marked``."""
    marks = marked(stats.verdict(speedup, ladder.noise), measured_in, row["status"])
    return f"{written(speedup)}× as fast as {reference} ({marks})"


def _faster(ladder: AblationSummary, interval: Interval | None) -> bool:
    return interval is not None and stats.verdict(interval, ladder.noise) == "FASTER"


def _memory(ladder: AblationSummary, row: Row) -> str:
    if known(row["memory_change"]):
        return f" at {signed(100 * row['memory_change'], 0)} % peak memory"
    fp32 = ladder.rows.loc[ladder.rows["added"] == BASELINE, "memory_bytes"]
    return ", peak memory not told apart" if known(row["memory_bytes"]) and fp32.notna().any() else ""
