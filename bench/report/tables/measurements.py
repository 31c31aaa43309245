"""Tables of what was measured and trained, of one workload each.

``rows`` are those of the summary. A table is None where nothing was measured of what it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from bench.report.analysis.doubts import doubted, marked_verdict
from bench.report.analysis.judge import IN_TURNS, judged_by
from bench.report.analysis.summary import CORE_STATUSES
from bench.report.analysis.verdict import Answer
from bench.report.format import MIB, change, known, number, ratio, records, written
from bench.report.tables.table import (
    BATCH,
    Column,
    Row,
    Table,
    decimals,
    general_columns,
    make_table,
    number_column,
    optional_columns,
    over_fp32,
    quality_columns,
    text_column,
    whole,
    word,
)
from bench.results.records import MEASURED
from bench.spec.precisions import BASELINE

SUM = (
    "Of devices that train together, peak memory is the largest device's, and after it the sum of "
    "all devices' peaks."
)
UNRESOLVED = "A peak without a change differs from fp32's by less than can be resolved."
BOLD = "Bold: what to train with, if accuracy does not suffer."
BY_CHANCE = "a ratio of two of these may differ from the speedup by chance."
ABOUT_FIGURES = (
    f"{BOLD} The speedup is a trimmed mean over paired rounds, a step a median over blocks, "
    "time/epoch a median over epochs after the first, with the fastest and slowest: "
    f"{BY_CHANCE}"
)
ABOUT_SCRIPTS = (
    f"{BOLD} The speedup is a trimmed mean over rounds of processes, a step the median over "
    f"processes of the mean of a process's steps: {BY_CHANCE}"
)


def by_workload(rows: pd.DataFrame, answers: Sequence[Answer]) -> list[Table]:
    """Return a table for each workload: every precision on each device, at its answer's batch size.

    The advised row stands out. Legends are below the last table.
    """
    answer_of = {}
    for answer in answers:
        answer_of[answer.names["workload"], answer.names["where"]] = answer
    lines_of: dict[str, list[Row]] = {}
    for line in records(_measured(rows)):
        answer = answer_of[line["workload"], line["where"]]
        if answer.batch == line["batch_size"]:
            line["tie"] = " ≈" if line["precision"] in answer.ties else ""
            line["is_advised"] = line["precision"] == answer.precision
            lines_of.setdefault(line["workload"], []).append(line)
    tables = []
    are_scripts = rows["data"].eq("script").all()
    notes = [ABOUT_SCRIPTS if are_scripts else ABOUT_FIGURES]
    for workload, lines in lines_of.items():
        columns = [
            text_column("device", "label"),
            *optional_columns(text_column("architecture", "architecture")),
            *_of_arms(lines),
        ]
        table = make_table(workload, lines, columns)
        assert table is not None  # no group is empty
        notes += table.footnotes
        advised = frozenset(place for place, line in enumerate(lines) if line["is_advised"])
        tables.append(replace(table, footnotes=[], strong=advised))
    # Once for all, because most of the marks are the same in every table.
    if tables:
        if any(map(_has_sum, lines_of.values())):
            notes.append(SUM)
        if any(map(_has_unresolved, lines_of.values())):
            notes.append(UNRESOLVED)
        tables[-1] = replace(tables[-1], footnotes=list(dict.fromkeys(notes)))
    return tables


def _measured(rows: pd.DataFrame) -> pd.DataFrame:
    """Leave out the rows of which neither speed nor memory nor training was tried."""
    return rows[rows[CORE_STATUSES].notna().any(axis=1)]


def _has_sum(rows: Sequence[Row]) -> bool:
    return any(known(row["all_devices_bytes"]) for row in rows)


def _has_unresolved(rows: Sequence[Row]) -> bool:
    """Return whether an arm's peak memory, and fp32's, are known but not whether they differ."""
    with_fp32 = {row["where"] for row in rows if _is_fp32(row) and known(row["peak_memory_bytes"])}
    for row in rows:
        is_compared = not _is_fp32(row) and row["where"] in with_fp32
        has_peak = known(row["peak_memory_bytes"])
        if is_compared and has_peak and not known(row["memory_change_ratio"]):
            return True
    return False


def _is_fp32(row: Row) -> bool:
    return bool(row["precision"] == BASELINE)


def unfolded(rows: pd.DataFrame, answers: Sequence[Answer]) -> dict[str, Table | None]:
    """Return what was measured at every batch size, by the subject of the answer."""
    subjects = dict(iter(rows.groupby(["workload", "where"], sort=False)))
    tables = {}
    for answer in answers:
        of_subject = subjects[answer.names["workload"], answer.names["where"]]
        tables[answer.subject] = every_batch(of_subject)
    return tables


def every_batch(rows: pd.DataFrame) -> Table | None:
    """Return the table of one workload on one device, with every batch size and precision."""
    measured = records(_measured(rows))
    columns = [
        *_of_arms(measured),
        text_column("verdict", marked_verdict, has_marks=True),
        text_column("measured in", "measured_in"),
        *general_columns(),
    ]
    about = SUM if _has_sum(measured) else ""
    return make_table("Every batch size", measured, columns, about)


def _of_arms(rows: Sequence[Row]) -> list[Column]:
    """Return the columns of arms; one with a ``tie`` has it after its name."""
    of_training = partial(number_column, status="train_status", lost="lost_train")
    if any(known(row["test_loss_nats"]) for row in rows):
        learned = of_training("test loss (nats)", "test_loss_nats")
    else:
        learned = of_training("accuracy (%)", "accuracy_pct", decimals)
    of_script = []
    if any(row["data"] == "script" for row in rows):
        of_script = optional_columns(
            number_column("waiting for data (%)", "script_wait_pct", 2),
            number_column("skipped steps", "skipped_steps", whole),
            text_column("computed in", "compute_dtypes"),
        )
    return [
        text_column("precision", _precision, has_marks=True),
        BATCH,
        *optional_columns(of_training("time/epoch (s)", _epoch)),
        number_column("step (ms)", partial(_unmarked, "step_ms")),
        *optional_columns(
            number_column("samples/s", partial(_unmarked, "samples_per_s")),
            number_column("tokens/s", "tokens_per_s"),
        ),
        number_column(
            "speedup [95 % interval]", _speedup, status="speed_status", lost="lost_speed"
        ),
        *of_script,
        number_column("peak memory (MiB, vs fp32)", _peak, status="memory_status"),
        *optional_columns(learned),
        *quality_columns(rows),
        *optional_columns(text_column("vs fp32 [90 % interval], parity", _parity, wrap=True)),
    ]


def _precision(row: Row) -> str:
    text = row["precision"] + row.get("tie", "")
    # The marks of figures stand at the figures.
    marks = "".join(doubt.mark for doubt in doubted([row]) if not doubt.of_figure)
    return f"{text} {marks}".rstrip()


def _unmarked(name: str, row: Row) -> str:
    # The speedup next to it has the marks of the status.
    if row["speed_status"] in MEASURED:
        return number(row[name])
    return word(row["speed_status"])


def _speedup(row: Row) -> str:
    text = over_fp32(row)
    turns = [row[name] for name in IN_TURNS]
    if known(turns[0]):
        text += f"; in turns {ratio(*turns)}"
    return text


def _epoch(row: Row) -> str:
    text = number(row["time_per_epoch_s"])
    fastest = number(row["fastest_epoch_s"], 3)
    slowest = number(row["slowest_epoch_s"], 3)
    # Epochs whose times read the same have no range to show, nor has one epoch.
    if fastest != slowest:
        text += f" ({fastest}–{slowest})"
    return text


def _peak(row: Row) -> str:
    text = number(row["peak_memory_bytes"] / MIB)
    if known(row["memory_change_ratio"]):
        text += f" ({change(row['memory_change_ratio'])})"
    if known(row["all_devices_bytes"]):
        text += f"; sum {number(row['all_devices_bytes'] / MIB)}"
    return text


def _parity(row: Row) -> str:
    quality = judged_by(row)
    if quality is not None:
        values = [row[name] for name in quality.changes]
        return f"{written(quality, values, quality.short)}, {row['accuracy_verdict']}"
    is_trained_fp32 = row["precision"] == BASELINE and known(row["train_loss"])
    return "baseline" if is_trained_fp32 else ""
