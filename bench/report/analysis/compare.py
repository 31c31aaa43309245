"""Two runs of the same questions: what became faster, slower, larger or smaller, row by row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench import stats
from bench.report.analysis.comparability import cautions
from bench.report.analysis.summary import summarise, told_apart
from bench.report.format import UNKNOWN, known, ratio, records
from bench.report.reading.load import KEY, Run, load
from bench.results.records import MEASURED
from bench.spec.errors import UsageError

QUESTION = [name for name in KEY if name not in ("run", "architecture", "device")]
"""What two rows must share to be compared: all that was asked, and not what answered."""
ASKED = {"batch_size": "batch size", "placement": "device"}
"""What parts of a question are called, where that is not the column's name."""
MOST = 4
"""More questions of a run than these are not named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two runs side by side."""

    rows: list[dict[str, Any]]
    """For each pair: suite, where, batch_size, precision, step (a ratio as text, or the statuses), verdict, memory and
    speedup (ratios as text), NEW over OLD."""
    cautions: list[str]
    """What is missing, and what differs beside what is compared."""
    apart: list[str]
    """Sentences on rows that only one of the two has."""


def compare(old: Path, new: Path) -> Comparison:
    """Hold ``new`` against ``old``, for every cell and precision that both have.

    Raises:
        UsageError: one is no run or cannot be read, they are the same, or they have no question in common.
    """
    if old.resolve() == new.resolve():
        raise UsageError(f"'{old}' and '{new}' are the same run. Give two.")
    runs = load([old, new])
    if len(runs.runs) < 2:
        raise UsageError(f"'{old}' and '{new}' are one run: name, host and start are the same. Give two.")
    sides = [summarise(runs.trials[runs.trials["run"] == run.label]) for run in runs.runs]
    timed = [side[side[["step_ms", "memory_bytes"]].notna().any(axis=1)] for side in sides]
    pairs = timed[0].merge(timed[1], on=QUESTION, suffixes=("_old", "_new"))
    if pairs.empty:
        raise UsageError(
            f"The two runs have no measured cell and precision in common: {_difference((old, new), timed)}. "
            "Measure the same in both."
        )
    pairs["memory_told"] = told_apart(pairs["device_kind_new"], pairs["memory_bytes_new"], pairs["memory_bytes_old"])
    gains = _speedups(runs.trials)
    rows = [_row(pair, runs.runs, gains) for pair in records(pairs)]
    return Comparison(rows=rows, cautions=cautions(runs), apart=_apart(timed, runs.runs))


def _row(pair: dict[Any, Any], runs: list[Run], gains: dict[tuple[Any, ...], tuple[float, ...]]) -> dict[str, Any]:
    where = " → ".join(dict.fromkeys((pair["device_old"], pair["device_new"])))
    parts = [pair[name] for name in ("parameters", "techniques") if pair[name]]
    suite = f"{pair['suite']} ({', '.join(parts)})" if parts else pair["suite"]
    step, verdict = _step(pair)
    return {
        "suite": suite,
        "where": f"{where} ({pair['placement']})" if pair["placement"] != "cpu" else where,
        "batch_size": pair["batch_size"],
        "precision": pair["precision"],
        "step": step,
        "verdict": verdict,
        "memory": _memory(pair),
        "speedup": _gain(pair, runs, gains),
    }


def _difference(folders: tuple[Path, Path], sides: list[pd.DataFrame]) -> str:
    """Say which parts of their questions two runs have no value of in common; where all are shared, what each asked."""
    for folder, side in zip(folders, sides, strict=True):
        if side.empty:
            return f"'{folder}' has no figure of time or memory"
    names = [name for name in QUESTION if not set(sides[0][name]) & set(sides[1][name])]
    if not names:  # each value is in both, but never together with the others
        names = [name for name in QUESTION if len(set(sides[0][name]) | set(sides[1][name])) > 1]
        old, new = (" and ".join(map(_question, side[names].drop_duplicates().values[:MOST])) for side in sides)
        return f"'{folders[0]}' has {old}; '{folders[1]}' has {new}"
    parts = []
    for name in names:
        values = [", ".join(_question([value]) or "none" for value in sorted(set(side[name]))) for side in sides]
        parts.append(f"{ASKED.get(name, name)} {values[0]} in '{folders[0]}' and {values[1]} in '{folders[1]}'")
    return "; ".join(parts)


def _question(values: Iterable[object]) -> str:
    return " ".join(f"{value:.0f}" if isinstance(value, float) else str(value) for value in values if value != "")


def _memory(pair: dict[Any, Any]) -> str:
    """Return the ratio of peaks, or that processes differ by as much anyway."""
    if not (known(pair["memory_bytes_old"]) and known(pair["memory_bytes_new"])):
        return UNKNOWN
    return ratio(pair["memory_bytes_new"] / pair["memory_bytes_old"]) if pair["memory_told"] else "not told apart"


def _step(pair: dict[Any, Any]) -> tuple[str, str]:
    """Return the ratio of step times, or else both statuses, and the verdict, which is of speed: NEW's over OLD's."""
    if not (known(pair["step_ms_old"]) and known(pair["step_ms_new"])):
        was, now = (pair[f"speed_status_{side}"] for side in ("old", "new"))
        return f"{was} → {now}" if known(was) and known(now) else UNKNOWN, UNKNOWN
    faster = stats.welch_interval(np.log(pair["paces_new"]), np.log(pair["paces_old"])).exp()
    noises = [value for value in (pair["noise_old"], pair["noise_new"]) if known(value)]
    word = stats.verdict(faster, max(noises, default=stats.ASSUMED_NOISE))
    slower = faster.inverse()
    return ratio(slower.center, slower.low, slower.high), word


def _speedups(trials: pd.DataFrame) -> dict[tuple[Any, ...], tuple[float, ...]]:
    """Return the logarithms of the speedups over fp32 that each process saw."""
    rows = trials[(trials["phase"] == "speed") & trials["status"].isin(MEASURED) & trials["speedup"].gt(0)]
    groups = rows.assign(log=np.log(rows["speedup"])).groupby(["run", *QUESTION], sort=False)["log"]
    return {tuple(key): tuple(logs) for key, logs in groups}


def _gain(pair: dict[Any, Any], runs: list[Run], gains: dict[tuple[Any, ...], tuple[float, ...]]) -> str:
    asked = tuple(pair[name] for name in QUESTION)
    was, now = (gains.get((run.label, *asked)) for run in runs)
    if not was or not now:
        return UNKNOWN
    change = stats.welch_interval(now, was).exp()
    return ratio(change.center, change.low, change.high)


def _apart(sides: list[pd.DataFrame], runs: list[Run]) -> list[str]:
    """Say what one run has and the other lacks."""
    old, new = (set(side[QUESTION].itertuples(index=False, name=None)) for side in sides)
    sentences = []
    for run, own in ((runs[0], old - new), (runs[1], new - old)):
        if lone := sorted(own, key=str):
            at = QUESTION.index
            named = [
                f"{key[at('suite')]} on {key[at('placement')]} batch {key[at('batch_size')]:.0f} {key[at('precision')]}"
                for key in lone
            ]
            more = f" and {len(named) - 6} more" if len(named) > 6 else ""
            sentences.append(f"Only in {run.label}: {', '.join(named[:6])}{more}.")
    return sentences
