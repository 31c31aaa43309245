"""One CSV of a run as a frame, or the reason why it is damaged, with the file and the line."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.report.format import records
from bench.results.columns import COLUMNS, SCHEMA, Field
from bench.results.records import MEASURED
from bench.spec.errors import UsageError

DISAGREE = 0.01
"""Share by which two figures of the same thing may differ: spreadsheets round."""
PIB = 2**50
"""Bytes that no machine has."""
BLOCKS_A_ROUND = 2
"""Blocks of each arm in an ABBA round."""
PAIR = ["trial", "precision"]


def read(path: Path, words: str = "object") -> pd.DataFrame:
    """Read one CSV; a last line without its end, which a crash leaves, is left out.

    Args:
        path: the file; one that is not there is empty.
        words: pandas' type of the columns that are not numbers.

    Raises:
        UsageError: it is damaged, or holds values that no measurement gives.
    """
    columns = COLUMNS[path.name]
    dtypes = {name: float if field.kind == "number" else words for name, field in columns.items()}
    whole = _whole_lines(path)
    header = _header(path, whole) if whole else None
    if header is None:
        return pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in dtypes.items()})
    present = {name: dtype for name, dtype in dtypes.items() if name in header}
    numbers = [name for name, dtype in present.items() if dtype is float]
    try:
        frame = pd.read_csv(
            io.BytesIO(whole),
            usecols=list(present),
            dtype=present,
            keep_default_na=False,
            na_values={name: ["", "nan", "NaN"] for name in numbers},
        )
    except ValueError as error:
        why = _word_for_number(path, numbers) or error
        raise UsageError(f"'{path}' cannot be read: {why}. Repair or remove that line.") from error
    for other in frame.loc[frame["schema"] != SCHEMA, "schema"].iloc[:1]:
        _refuse_schema(path, f"{other:g}")
    if words != "category":  # as the blocks are, of which there may be millions
        _refuse_short_lines(path, whole)
    check(path, frame)
    if len(present) < len(dtypes):
        absent = {name: float("nan") if dtypes[name] is float else "" for name in dtypes if name not in present}
        frame = pd.concat([frame, pd.DataFrame(absent, index=frame.index)], axis=1)[list(dtypes)]
    return frame if words == "category" else frame.copy()  # defragmented: rows are taken from it hundreds of times


def is_filled(path: Path) -> bool:
    """Say whether a file is there and not empty."""
    return path.is_file() and path.stat().st_size > 0


def torn(path: Path) -> list[str]:
    """Warn of a last line without its end, which is left out."""
    if not is_filled(path):
        return []
    with path.open("rb") as file:
        file.seek(-1, io.SEEK_END)
        return [] if file.read() == b"\n" else [f"{path.name} ends in the middle of a line, which is left out."]


def _whole_lines(path: Path) -> bytes:
    """Return a file without a last line that lacks its end, and without a spreadsheet's byte order mark."""
    data = path.read_bytes() if path.is_file() else b""
    return data[: data.rfind(b"\n") + 1].removeprefix(codecs.BOM_UTF8)


def _header(path: Path, whole: bytes) -> list[str] | None:
    """Return the header of a file; None where there are no rows.

    Raises:
        UsageError: the rows are of another schema, or the header is not one that ampmeter wrote.
    """
    columns = COLUMNS[path.name]
    start = b"\n".join(whole.split(b"\n", 50)[:50])  # a row may hold line breaks
    reader = csv.reader(io.StringIO(start.decode("utf-8", "replace"), newline=""))
    header, *rows = itertools.islice(reader, 2)
    if "schema" not in header:
        raise UsageError(
            f"'{path}' has no column schema, so its header is lost or it is of something else. Restore it."
        )
    if rows and len(rows[0]) == len(header):
        _refuse_schema(path, rows[0][header.index("schema")])
    required = [name for name, field in columns.items() if not field.column.added_later]
    lost = next((name for name in required if name not in header), None)
    if lost and rows:
        raise UsageError(
            f"'{path}' lacks the column {lost}, which every file of schema {SCHEMA} has: its header was changed. "
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
    return header if rows else None


def _refuse_schema(path: Path, schema: str) -> None:
    if schema != f"{SCHEMA}":
        raise UsageError(f"'{path}' holds rows of schema {schema or 'unknown'}; this version reads schema {SCHEMA}.")


def _refuse_short_lines(path: Path, whole: bytes) -> None:
    """Refuse a line with fewer fields than the header: pandas would read the rest as unknown."""
    unquoted = (line.split(b'"')[::2] for line in whole.splitlines() if line)
    if len({sum(part.count(b",") for part in parts) for parts in unquoted}) < 2:  # far faster than the csv module
        return
    for line, width, row in _rows(path):
        if 0 < len(row) < width and not _is_torn(path, line):
            raise UsageError(
                f"'{path}', line {line}: {len(row)} fields of {width}, so the line was cut off. Repair or remove it."
            )


def _rows(path: Path) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the rows of a file, each with the line in which it ends and the number of columns."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file)
        width = len(next(reader, []))
        for row in reader:
            yield reader.line_num, width, row


def _is_torn(path: Path, line: int) -> bool:
    """Say whether a line is the file's last, without its end."""
    data = path.read_bytes()
    return not data.endswith(b"\n") and line >= data.count(b"\n") + 1


def _word_for_number(path: Path, numbers: Collection[str]) -> str:
    """Say which line of a file has a word where a number belongs; empty where none has."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader: csv.DictReader[Any] = csv.DictReader(file)
        for row in reader:
            for name in numbers:
                try:
                    float(row.get(name) or "0")
                except ValueError:
                    return f"line {reader.line_num}: {name} '{row[name]}' is no number"
    return ""


def check(path: Path, frame: pd.DataFrame) -> None:
    """Refuse a file with values that no measurement gives.

    Raises:
        UsageError: there are some; it names the file, the line and the value.
    """
    for field in COLUMNS[path.name].values():
        if field.name in frame:
            _check_column(path, frame, field)
    if path.name == "trials.csv":
        _check_throughput(path, frame, frame["step_ms"] / 1000, "batch_size over step_ms")
        crossed = (frame["speedup_low"] > frame["speedup"]) | (frame["speedup_high"] < frame["speedup"])
        _refuse(path, frame, crossed, "speedup", "lies outside its own interval")
    if path.name == "epochs.csv":
        _check_throughput(path, frame, frame["train_s"], "samples over train_s")


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
    if phase := column.required_in:
        lacking = values.isna() & (frame["phase"] == phase) & frame["status"].isin(MEASURED)
        _refuse(path, frame, lacking, name, f"is missing in a measured row of phase {phase}")
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


def _check_throughput(path: Path, frame: pd.DataFrame, seconds: pd.Series, quotient: str) -> None:
    """Refuse a throughput that is not the samples over the time; ``quotient`` names the two columns."""
    samples = frame[quotient.partition(" ")[0]]
    wrong = (frame["samples_per_s"] * seconds / samples - 1).abs() > DISAGREE
    _refuse(path, frame, wrong, "samples_per_s", f"is not {quotient}")


def refuse_too_much_memory(path: Path, frame: pd.DataFrame, info: Mapping[str, Any]) -> None:
    """Refuse peaks above the memory of the device itself, where run.json has it.

    Args:
        path: trials.csv.
        frame: rows of it, their index being their place in the file.
        info: run.json.
    """
    environment = info.get("environment")
    devices = environment.get("devices") if isinstance(environment, dict) else None
    sizes = {
        str(device.get("placement")): device.get("memory_total_bytes")
        for device in devices or []
        if isinstance(device, dict)
    }
    most = frame["placement"].map({name: size for name, size in sizes.items() if isinstance(size, int | float)})
    for field in COLUMNS[path.name].values():
        if field.column.on_device:
            wrong = frame[field.name] > most.astype(float)
            _refuse(path, frame, wrong, field.name, "is more memory than the device has")


def repeated(path: Path, frame: pd.DataFrame, key: list[str]) -> list[str]:
    """Warn of trials that are in trials.csv twice although the first had not failed, so that nobody tried it again.

    Args:
        path: trials.csv.
        frame: all its rows.
        key: the columns that tell one question from another.
    """
    retried = set(frame.loc[frame["status"].isin(("timeout", "failed")), "trial"])
    twice = frame[frame.duplicated(key, keep="last") & ~frame["trial"].isin(retried)]
    if twice.empty:
        return []
    first = twice.iloc[0]
    return [
        f"{path.name} has {len(twice)} rows twice, first {first['trial']} in {first['precision']}, line "
        f"{_line(path, int(twice.index[0]))}; of each the last counts."
    ]


def lost_blocks(trials: pd.DataFrame, blocks: pd.DataFrame) -> list[str]:
    """Warn, in one sentence, of speeds that were not made from the blocks: lines lost, added or edited.

    Args:
        trials: a run's rows of trials.csv that have blocks, each trial and precision once.
        blocks: its rows of blocks.csv, each block once, words as categories.
    """
    timed = trials[trials["status"].isin(MEASURED) & trials["rounds"].gt(0) & trials["step_ms"].notna()]
    steps_ms = (blocks["time_ms"] / blocks["steps"]).where(blocks["discarded"].eq("").to_numpy())
    by_arm = steps_ms.groupby([blocks[name] for name in PAIR], observed=True, sort=False)
    there = by_arm.agg(["size", "count", "median"]).rename_axis(PAIR)
    arms = timed.set_index(PAIR)[["rounds", "discarded_rounds", "step_ms"]].join(there)
    arms = arms.fillna({"size": 0, "count": 0, "discarded_rounds": 0})
    arms["counted"] = BLOCKS_A_ROUND * arms["rounds"]
    arms["discarded"] = BLOCKS_A_ROUND * arms["discarded_rounds"]
    alike = (arms["size"] == arms["counted"] + arms["discarded"]) & (arms["count"] == arms["counted"])
    unlike = ~alike | ((arms["median"] / arms["step_ms"] - 1).abs() > DISAGREE)
    if not unlike.any():
        return []
    first = records(arms[unlike].assign(alike=alike).reset_index())[0]
    expected = f"{first['counted']:.0f} blocks that count and {first['discarded']:.0f} that do not"
    found = f"{first['count']:.0f} and {first['size'] - first['count']:.0f}"
    if first["alike"]:
        expected, found = f"a step of {first['step_ms']:.4g} ms", f"a median of {first['median']:.4g} ms"
    others = unlike.sum() - 1
    more = f", and {others} more {'row is' if others == 1 else 'rows are'} like it" if others else ""
    return [
        f"blocks.csv is not what trials.csv was made from: of {first['trial']} in {first['precision']} trials.csv "
        f"tells of {expected}, blocks.csv has {found}{more}. Lines of one of the two were lost, added or edited."
    ]


def _refuse(path: Path, frame: pd.DataFrame, wrong: pd.Series, name: str, why: str) -> None:
    at = np.flatnonzero(wrong.to_numpy(dtype=bool))
    if len(at):
        value = frame[name].iloc[at[0]]
        shown = "" if pd.isna(value) or value == "" else f" '{value:g}'" if isinstance(value, float) else f" '{value}'"
        more = f" So is it in {len(at) - 1} more lines." if len(at) > 1 else ""
        raise UsageError(
            f"'{path}', line {_line(path, int(frame.index[at[0]]))}: {name}{shown} {why}.{more} "
            "No measurement gives that: restore the file, or remove the line."
        )


def _line(path: Path, row: int) -> int:
    """Return the line in which a row ends: rows may hold line breaks."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file)
        lines = (reader.line_num for fields in reader if fields)
        return next(line for at, line in enumerate(lines) if at == row + 1)
