"""Tables that compare more than precisions: devices together with one, setups, and the values of a parameter."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from bench import stats
from bench.report.analysis import comparability
from bench.report.analysis.doubts import marked_verdict
from bench.report.analysis.summary import over, reference_batch
from bench.report.analysis.sweeps import BATCH_SIZE, Sweep
from bench.report.format import bracketed, estimate, known, number, ratio, records, titled
from bench.report.reading.labels import placement
from bench.report.reading.load import CELL, KEY, SUBJECT
from bench.report.tables.table import (
    BATCH,
    DEVICE,
    PRECISION,
    RECIPE,
    Entry,
    Material,
    Row,
    Table,
    figures,
    optional,
    over_fp32,
    table,
    words,
)
from bench.results.columns import listed
from bench.results.records import MEASURED
from bench.spec.metric import Metric
from bench.spec.metrics import EPOCH, THROUGHPUT
from bench.spec.precisions import BASELINE
from bench.spec.techniques import for_one_device

SWEEPS = "Sweeps"
ABOUT = (
    "Throughput of devices that train together over that of one of them alone. Strong scaling keeps the whole batch; "
    "weak scaling keeps each device's part of it. Efficiency is the speedup divided by the number of devices. The "
    "interval is Welch's over processes, because the two were not measured side by side; with one process each there "
    "is none. Communication is the share of a step that goes away when the devices do not synchronize gradients "
    "(DistributedDataParallel's no_sync), with Student's interval over processes: sending gradients beyond what "
    "overlaps with backward, and each step's wait for the slowest device."
)
SETUPS_ABOUT = (
    "Each ratio is how many times as fast its row is as the setup with the column's number: that of their speedups "
    "where they were timed side by side, else that of their figures. None has an interval, and a few per cent between "
    "two boards decide little. All setups are at the batch size that most devices measured; a setup without it is at "
    "that of its device's verdict, else at its largest, and its steps are other work."
)
FEWEST = 3
"""Two setups are in the other tables already."""
ON_A_CPU = (
    "On a CPU there is no efficiency: one process computes with all threads, several processes share them, so nothing "
    "was added."
)


def scaling(lines: Sequence[Row]) -> Table | None:
    """Return the table of the lines of ``scalings``; None where several devices were not compared with one."""
    columns = [
        words("devices", "where"),
        PRECISION,
        BATCH,
        words("scaling", "scaling"),
        figures("throughput (samples/s)", "samples_per_s"),
        words("one device", lambda line: placement(str(line["one"]["placement"]))),
        figures("its throughput", lambda line: line["one"]["samples_per_s"]),
        figures("speedup over one [95 % interval]", lambda line: estimate(line["over_one"]), status="status"),
        figures("efficiency (%)", "efficiency_pct", 3),
        figures(
            "communication (% of a step) [95 % interval]",
            lambda line: line["communication"] and bracketed(line["communication"], lambda share: number(share, 2)),
        ),
    ]
    notes = [ON_A_CPU] if any(line["on_cpu"] for line in lines) else []
    return table("Scaling", lines, columns, ABOUT, notes)


def _scaling(material: Material) -> list[Table | str | None]:
    lines, remarks = scalings(material.rows, material.summary, material.runs.trials)
    return [scaling(lines), *remarks]


def along(sweep: Sweep) -> Table | None:
    """Return step time, its ratio to the first value's, and speedup for each value, precision by precision."""
    lines: list[Row] = []
    for _, alike in sweep.groups():
        first: dict[str, Row] = {}
        for row in records(alike.sort_values(["turn", "rank"], kind="stable")):
            reference = first.setdefault(row["precision"], row)
            against = "first" if reference is row else ratio(row["step_ms"] / reference["step_ms"])
            lines.append(row | {"against": against})
    columns = [
        DEVICE,
        *optional(words("other parameters", "rest")),
        *([] if sweep.name == BATCH_SIZE else [BATCH]),
        figures(sweep.name, "value"),
        PRECISION,
        figures("step (ms)", "step_ms"),
        figures("× step of the first value", "against"),
        figures("speedup [95 % interval]", over_fp32, status="speed_status", lost="lost_speed"),
        words("verdict", marked_verdict),
    ]
    about = (
        f"Each value of {sweep.name}; all else is equal. A step's time is divided by the time at the first value in "
        "the same precision, in other processes. More work takes more time: the cost of a value shows where the values "
        "next to it do nearly the same work. The speedup is over fp32 at the same value."
    )
    return table(sweep.title, lines, columns, about)


def scalings(rows: pd.DataFrame, summary: pd.DataFrame, trials: pd.DataFrame) -> tuple[list[Row], list[str]]:
    """Return the scaling of one workload, and a sentence on each subject of several devices that has none.

    Their reference is the first of these devices that the same run measured alone.

    Args:
        rows: rows of the summary, of one workload.
        summary: all rows of the summary; without ``sync-bn`` and the like, one device is another workload.
        trials: rows of ``Runs.trials``.

    Returns:
        Each distributed row for each kind of scaling, with ``scaling`` (strong, or weak with the batch size of a
        device), ``one`` (the row of the one device), ``on_cpu``, ``status``, ``over_one`` (an interval),
        ``efficiency_pct`` (None on a CPU) and ``communication`` (an interval in per cent, or None).
    """
    timed = [row for row in records(summary) if known(row["step_ms"])]
    communication = _communication(trials)
    lines: list[Row] = []
    remarks = []
    distributed = rows[rows["step_ms"].notna() & rows["members"].map(lambda cell: len(listed(cell)) > 1).astype(bool)]
    for _, subject in distributed.groupby(SUBJECT, sort=False):
        together = records(subject)
        scaled = []
        for row in together:
            share, members = communication.get(tuple(row[name] for name in KEY)), listed(row["members"])
            alone = {(one["placement"], one["batch_size"]): one for one in timed if _is_part(one, row)}
            for word, batch in (("strong", row["batch_size"]), ("weak", row["batch_size"] / len(members))):
                if single := next((alone[name, batch] for name in members if (name, batch) in alone), None):
                    scaled.append(_scaled(row, single, word, len(members)) | {"communication": share})
        lines += scaled
        remarks += [] if scaled else [_reason(together)]
    return lines, remarks


def _is_part(single: Row, row: Row) -> bool:
    """Say whether a row was measured alike on one device; what means nothing on one device may differ."""
    same = all(single[name] == row[name] for name in ("run", "suite", "parameters", "data", "precision"))
    techniques = [for_one_device(listed(each["techniques"])) for each in (single, row)]
    return same and techniques[0] == techniques[1]


def _scaled(row: Row, single: Row, word: str, count: int) -> Row:
    speedup, on_cpu = over(row, single), single["device_kind"] == "cpu"
    return row | {
        "scaling": word if word == "strong" else f"weak, {single['batch_size']:.0f} a device",
        "one": single,
        "on_cpu": on_cpu,
        "status": "unconverged" if "unconverged" in (row["speed_status"], single["speed_status"]) else "ok",
        "over_one": speedup,
        "efficiency_pct": None if on_cpu else 100 * speedup.center / count,
    }


def _reason(together: Sequence[Row]) -> str:
    """Say what a subject of several devices needs for its scaling."""
    whole = _sizes(row["batch_size"] for row in together)
    parts = _sizes(row["batch_size"] / len(listed(row["members"])) for row in together)
    return (
        f"There is no scaling of {together[0]['where']}: none of its devices was measured alone, at batch {whole} "
        f"(strong scaling) or {parts} (weak scaling), in the same run, as by --gpus 0,1,0+1."
    )


def _sizes(sizes: Iterable[float]) -> str:
    return ", ".join(f"{size:g}" for size in sorted(set(sizes)))


def _communication(trials: pd.DataFrame) -> dict[Hashable, stats.Interval]:
    """Return each arm's share of a step that communication takes, in per cent, over processes.

    Averaged is the logarithm of a step's time over that of a step without synchronization.
    """
    rows = trials[(trials["phase"] == "speed") & trials["status"].isin(MEASURED) & trials["communication_pct"].notna()]
    shares: dict[Hashable, stats.Interval] = {}
    for arm, group in rows.groupby(KEY, sort=False)["communication_pct"]:
        left = stats.student(np.log1p(-group.to_numpy(dtype=np.float64) / 100)).exp()
        low, high = (None if end is None else 100 * (1 - end) for end in (left.high, left.low))
        shares[arm] = stats.Interval(center=100 * (1 - left.center), low=low, high=high, n=left.n)
    return shares


def setups(material: Material) -> list[Table | str | None]:
    """Return the matrices of each recipe: by the throughput of steps, and by time per epoch on the same data.

    Where a source gives tokens/s alone, the throughput is that.
    """
    rows, recipe = material.rows, comparability.RECIPE
    by_tokens = rows[rows[THROUGHPUT.figure].isna()]
    by_tokens = by_tokens.assign(**{THROUGHPUT.figure: by_tokens["tokens_per_s"]})
    parts = [
        (rows, recipe, THROUGHPUT),
        (by_tokens, recipe, replace(THROUGHPUT, unit="tokens/s")),
        (rows, [*recipe, "data"], EPOCH),
    ]
    matrices = [
        _matrix(alike, metric)
        for some, same, metric in parts
        for _, alike in some[some[metric.figure] > 0].groupby(same, sort=False)
    ]
    return [*matrices, SETUPS_ABOUT if any(matrices) else None]


def _matrix(rows: pd.DataFrame, metric: Metric) -> Table | None:
    """Return the setups of some rows, the fastest first, each over the slower ones."""
    lines = _at_one_batch(rows)
    if len(lines) < FEWEST:
        return None
    lines.sort(key=lambda row: -metric.sign * row[metric.figure])
    several = [name for name in ("techniques", "data") if len({row[name] for row in lines}) > 1]
    for place, row in enumerate(lines):
        where = titled(row["label"], *(row[name] or f"no {name}" for name in several))
        row |= {"place": place, "name": f"{place + 1}. {where}, {row['precision']}"}
    columns = [
        words("setup", "name"),
        BATCH,
        figures(f"{metric.label} ({metric.unit})", metric.figure),
        *(figures(f"÷ {place}", partial(_over, metric, other)) for place, other in enumerate(lines[1:], 2)),
    ]
    return table(f"{titled(*(lines[0][name] for name in comparability.RECIPE))}: {metric.label}", lines, columns)


def _at_one_batch(rows: pd.DataFrame) -> list[Row]:
    """Return each arm at the batch size of most subjects, then of most verdicts.

    An arm without it is at that of its subject's verdict, else at its own largest. Published rows without a batch size
    are all there.
    """
    unknown = rows[rows["batch_size"].isna()]
    subjects = [group for _, group in rows[rows["batch_size"].notna()].groupby(SUBJECT, sort=False)]
    verdicts = [reference_batch(group) for group in subjects]
    measured = [size for group in subjects for size in group["batch_size"].unique()]
    common = max(measured, key=lambda size: (measured.count(size), verdicts.count(size), size), default=None)
    chosen = [unknown]
    for group, verdict in zip(subjects, verdicts, strict=True):
        for _, arm in group.groupby("precision", sort=False):
            sizes = set(arm["batch_size"])
            size = next((size for size in (common, verdict) if size in sizes), max(sizes))
            chosen.append(arm[arm["batch_size"] == size])
    return records(pd.concat(chosen))


def _over(metric: Metric, column: Row, row: Row) -> str:
    """Write how many times as fast a row is as that of a column; nothing where that is not the slower one."""
    if row["place"] >= column["place"]:
        return ""
    gain, other = (1.0 if each["precision"] == BASELINE else each[metric.change] for each in (row, column))
    if known(gain) and known(other) and all(row[name] == column[name] for name in CELL):
        return ratio(gain / other)
    return ratio((row[metric.figure] / column[metric.figure]) ** metric.sign)


TABLES = (
    Entry(20, "Setups against each other", setups),
    Entry(40, SWEEPS, lambda material: map(along, material.sweeps)),
    Entry(62, RECIPE, _scaling),
)
