"""Rows that cannot be: refused with the file and the line, for a figure that is wrong once may be wrong anywhere."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.report.tables.format import records
from bench.results.columns import COLUMNS, SCHEMA, Field
from bench.results.records import MEASURED
from bench.spec.errors import UsageError

DISAGREE = 0.01
"""Share by which a throughput may differ from the work over its time: spreadsheets round."""
PIB = 2**50
"""Bytes that no machine has."""
FILLED = {"blocks.csv": ("speed", "ladder"), "epochs.csv": ("train",), "numerics.csv": ("numerics",)}
"""The phases whose measured trials have rows in a file."""


def refuse_short_lines(path: Path, data: bytes) -> None:
    """Refuse a file in which a line has fewer fields than the header: pandas would read the rest as unknown.

    Args:
        path: the file.
        data: its whole lines.

    Raises:
        UsageError: there is one.
    """
    if b'"' not in data and len({line.count(b",") for line in data.splitlines() if line}) < 2:
        return
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file)
        width = len(next(reader, []))
        lines = ((reader.line_num, len(row)) for row in reader)
        short = next(((line, size) for line, size in lines if 0 < size < width), None)
    if short and not _is_torn(path, short[0]):
        raise UsageError(
            f"'{path}', line {short[0]}: {short[1]} fields of {width}, so the line was cut off. Repair or remove it."
        )


def check(path: Path, frame: pd.DataFrame) -> None:
    """Refuse a file with values that no measurement gives.

    Raises:
        UsageError: there are some; it names the file, the line and the value.
    """
    for field in COLUMNS[path.name].values():
        if field.name in frame:
            _check_column(path, frame, field)
    if "status" in frame:
        _check_results(path, frame)
    if path.name == "epochs.csv" and "samples_per_s" in frame:
        off = _off(frame["samples_per_s"] * frame["train_s"], frame["samples"])
        _refuse(path, frame, off, "samples_per_s", "is not samples over train_s")


def _check_column(path: Path, frame: pd.DataFrame, field: Field) -> None:
    name, values, column = field.name, frame[field.name], field.column
    if column.filled:
        _refuse(path, frame, values == "", name, "is empty")
    if field.words:
        _refuse(path, frame, ~values.isin(field.words), name, f"is none of {', '.join(field.words)}")
    if field.kind != "number":
        return
    if field.always:
        _refuse(path, frame, values.isna(), name, "is missing, so the line was cut off")
    if not column.may_diverge:
        _refuse(path, frame, np.isinf(values), name, "is infinite")
    if column.sign == "above 0":
        _refuse(path, frame, values <= 0, name, "must be above 0")
    elif column.sign == "0 or more":
        _refuse(path, frame, values < 0, name, "cannot be below 0")
    if column.most is not None:
        _refuse(path, frame, values > column.most, name, f"cannot be above {column.most:g}")
    if field.unit == "bytes":
        _refuse(path, frame, values > PIB, name, "is more memory than a machine has")


def refuse_too_much_memory(path: Path, frame: pd.DataFrame, info: Mapping[str, Any]) -> None:
    """Refuse peaks above the memory that the device itself has, where run.json tells it.

    Args:
        path: trials.csv.
        frame: rows of it, their index being their place in the file.
        info: run.json.

    Raises:
        UsageError: there is one.
    """
    environment = info.get("environment")
    devices = environment.get("devices") if isinstance(environment, dict) else None
    told = [device for device in devices or [] if isinstance(device, dict)]
    sizes = {str(device.get("placement")): device.get("memory_total_bytes") for device in told}
    known = {name: size for name, size in sizes.items() if isinstance(size, int | float)}
    most = frame["placement"].map(known).astype(float)
    for name in (field.name for field in COLUMNS[path.name].values() if field.column.on_device):
        _refuse(path, frame, frame[name] > most, name, "is more memory than the device has")


def _check_results(path: Path, frame: pd.DataFrame) -> None:
    for field in COLUMNS[path.name].values():
        if phase := field.column.required_in:
            lacking = (frame["phase"] == phase) & frame["status"].isin(MEASURED) & frame[field.name].isna()
            _refuse(path, frame, lacking, field.name, f"is missing in a measured row of phase {phase}")
    off = _off(frame["samples_per_s"] * frame["step_ms"] / 1000, frame["batch_size"])
    _refuse(path, frame, off, "samples_per_s", "is not batch_size over step_ms")
    crossed = (frame["speedup_low"] > frame["speedup"]) | (frame["speedup_high"] < frame["speedup"])
    _refuse(path, frame, crossed, "speedup", "lies outside its own interval")


def _off(made: pd.Series, whole: pd.Series) -> pd.Series:
    """Say of which rows two figures that are made from each other disagree; not of those that lack one."""
    return (made / whole - 1).abs() > DISAGREE


def repeated(path: Path, frame: pd.DataFrame) -> list[str]:
    """Warn of trials that are in trials.csv twice although the first had not failed, so that nobody tried it again."""
    ended = frame["status"].isin(("timeout", "failed"))
    retried = set(frame.loc[ended, "trial"])
    twice = frame[frame.duplicated(["trial", "precision"], keep="last") & ~frame["trial"].isin(retried)]
    if twice.empty:
        return []
    first = twice.iloc[0]
    return [
        f"{path.name} has {len(twice)} rows twice, first {first['trial']} in {first['precision']}, line "
        f"{_line(path, int(twice.index[0]))}; of each the last counts."
    ]


def absent(folder: Path, frame: pd.DataFrame) -> list[str]:
    """Warn, in one sentence, of files that are not there although trials of ``frame`` filled them."""
    phases = set(frame.loc[frame["status"].isin(MEASURED), "phase"])
    lost = [name for name, filled in FILLED.items() if phases & set(filled) and not is_there(folder / name)]
    verb, them = ("is", "it") if len(lost) == 1 else ("are", "them")
    return [f"{' and '.join(lost)} {verb} missing, so what is made from {them} is not in the report."] if lost else []


def is_there(path: Path) -> bool:
    """Say whether a file is there and not empty."""
    return path.is_file() and path.stat().st_size > 0


def torn(path: Path) -> list[str]:
    """Warn of a last line without its end, which is left out."""
    if not path.is_file() or not path.stat().st_size:
        return []
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return [] if file.read() == b"\n" else [f"{path.name} ends in the middle of a line, which is left out."]


def blame(path: Path, numbers: Collection[str]) -> str:
    """Say which line of a file has a word where a number belongs; empty where none has."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.DictReader(file)
        for row in reader:
            for name in numbers:
                if not _is_number(row.get(name) or ""):
                    return f"line {reader.line_num}: {name} '{row[name]}' is no number"
    return ""


def _is_number(word: str) -> bool:
    try:
        float(word or "0")
    except ValueError:
        return False
    return True


def _refuse(path: Path, frame: pd.DataFrame, wrong: pd.Series, name: str, why: str) -> None:
    found = np.flatnonzero(wrong.to_numpy(dtype=bool))
    if len(found):
        value = frame[name].iloc[found[0]]
        shown = "" if pd.isna(value) or value == "" else f" '{value:g}'" if isinstance(value, float) else f" '{value}'"
        more = f" So is it in {len(found) - 1} more lines." if len(found) > 1 else ""
        raise UsageError(
            f"'{path}', line {_line(path, int(frame.index[found[0]]))}: {name}{shown} {why}.{more} "
            "No measurement gives that: restore the file, or remove the line."
        )


def _line(path: Path, row: int) -> int:
    """Return the line in which a row ends: rows may hold line breaks."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file)
        rows = (reader.line_num for fields in reader if fields)
        return next(line for at, line in enumerate(rows) if at == row + 1)


def _is_torn(path: Path, line: int) -> bool:
    """Say whether a line is the file's last, without its end."""
    data = path.read_bytes()
    return not data.endswith(b"\n") and line >= data.count(b"\n") + 1


# The first lines of a run's CSV: whether its columns are those that its schema has.


def whole_lines(path: Path) -> bytes:
    """Return a file without a last line that lacks its end, which a crash leaves, and without a spreadsheet's mark."""
    data = path.read_bytes() if path.is_file() else b""
    return data[: data.rfind(b"\n") + 1].removeprefix(codecs.BOM_UTF8)


def missing_columns(path: Path, whole: bytes) -> list[str] | None:
    """Return the columns that were added after a file was written; None where the file has no rows.

    Args:
        path: the file, to be named.
        whole: its lines.

    Raises:
        UsageError: the rows are of another schema, or the header is not one that ampmeter wrote.
    """
    columns = COLUMNS[path.name]
    reader = csv.reader(io.StringIO(_head(whole), newline=""))
    header, *rows = itertools.islice(reader, 2)
    if "schema" not in header:
        raise UsageError(
            f"'{path}' has no column schema, so its header is lost or it is of something else. Restore it."
        )
    if rows and len(rows[0]) == len(header):
        refuse_schema(path, rows[0][header.index("schema")])
    missing = [name for name in columns if name not in header]
    lost = [name for name in missing if not columns[name].column.added_later]
    if lost and rows:
        raise UsageError(
            f"'{path}' lacks the column {lost[0]}, which every file of schema {SCHEMA} has: its header was changed. "
            "Restore the file."
        )
    found, ordered = ([name for name in header if name in columns], [name for name in columns if name in header])
    if found != ordered:
        pairs = itertools.zip_longest(found, ordered, fillvalue="the end")
        first, expected = next(pair for pair in pairs if pair[0] != pair[1])
        raise UsageError(
            f"'{path}', line 1: {first} stands where {expected} belongs. Columns are never written in that order, so "
            "names or columns were moved, and nobody can tell which: restore the file."
        )
    return missing if rows else None


def refuse_schema(path: Path, word: str) -> None:
    """Refuse a row of another schema than this version reads."""
    if word != f"{SCHEMA}":
        raise UsageError(f"'{path}' holds rows of schema {word or 'unknown'}; this version reads schema {SCHEMA}.")


def _head(whole: bytes) -> str:
    """Return the lines that the header and the first row are in; a row may hold line breaks."""
    lines = whole.split(b"\n", 50)[:50]
    return b"\n".join(lines).decode("utf-8", "replace")


# Whether blocks.csv holds the blocks that trials.csv was made from.

BLOCKS_A_ROUND = 2
"""Blocks of each arm in an ABBA round, which is palindromic."""
PAIR = ["trial", "precision"]


def remarks(trials: pd.DataFrame, blocks: pd.DataFrame) -> list[str]:
    """Say, in one sentence, of which speeds the blocks are not those that were timed: lines lost, added or edited.

    Args:
        trials: a run's rows of trials.csv, each trial and precision once.
        blocks: its rows of blocks.csv, each block once, words as categories.
    """
    timed = trials[trials["phase"].isin(("speed", "ladder")) & trials["status"].isin(MEASURED)]
    timed = timed[timed["rounds"].gt(0) & timed["step_ms"].notna()]
    counts = blocks["discarded"].eq("").to_numpy()
    steps_ms = (blocks["time_ms"] / blocks["steps"]).where(counts)
    keys = [blocks[name] for name in PAIR]
    found = steps_ms.groupby(keys, observed=True, sort=False).agg(["size", "count", "median"])
    held = timed.set_index(PAIR)[["rounds", "discarded_rounds", "step_ms"]].join(found.rename_axis(PAIR))
    held = held.fillna({"size": 0, "count": 0, "discarded_rounds": 0})
    every = BLOCKS_A_ROUND * (held["rounds"] + held["discarded_rounds"])
    unlike = (held["size"] != every) | (held["count"] != BLOCKS_A_ROUND * held["rounds"])
    unlike |= (held["median"] / held["step_ms"] - 1).abs() > DISAGREE
    if not unlike.any():
        return []
    first = records(held[unlike].reset_index())[0]
    rounds, discarded = first["rounds"], first["discarded_rounds"]
    asked = f"{BLOCKS_A_ROUND * rounds:.0f} blocks that count and {BLOCKS_A_ROUND * discarded:.0f} that do not"
    here = f"{first['count']:.0f} and {first['size'] - first['count']:.0f}"
    if (first["count"], first["size"]) == (BLOCKS_A_ROUND * rounds, BLOCKS_A_ROUND * (rounds + discarded)):
        asked, here = f"a step of {first['step_ms']:.4g} ms", f"a median of {first['median']:.4g} ms"
    others = unlike.sum() - 1
    more = f", and {others} more {'row is' if others == 1 else 'rows are'} like it" if others else ""
    return [
        f"blocks.csv is not what trials.csv was made from: of {first['trial']} in {first['precision']} trials.csv "
        f"tells of {asked}, blocks.csv has {here}{more}. Lines of one of the two were lost, added or edited."
    ]
