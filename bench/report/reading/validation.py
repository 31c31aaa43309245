"""Values that no measurement gives, refused with file and line, and files of a run that contradict each other."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.report.format import records
from bench.results.columns import COLUMNS, Field
from bench.results.records import MEASURED
from bench.spec.errors import UsageError

DISAGREE = 0.01
"""Share by which two figures of the same thing may differ: spreadsheets round."""
PIB = 2**50
"""Bytes that no machine has."""
BLOCKS_A_ROUND = 2
"""Blocks of each arm in an ABBA round."""
PAIR = ["trial", "precision"]


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
