"""What was asked for and could not be measured, said once: by precision what no device of a kind supports or holds."""

from __future__ import annotations

import pandas as pd

from bench.report.analysis.verdict import MEASURES
from bench.report.reading.labels import short
from bench.report.reading.load import CELL, SUBJECT, is_emulated
from bench.spec.generations import generation_rank
from bench.spec.phases import PHASES
from bench.spec.precisions import precision_rank

UNSUPPORTED, OOM = "unsupported", "oom"


def without_unsupported(summary: pd.DataFrame) -> pd.DataFrame:
    """Leave out the rows that are ``unsupported`` in all that was tried, where the batch size has another precision.

    ``sentences`` says what they were.
    """
    lost = summary[MEASURES] == UNSUPPORTED
    whole = lost.any(axis=1) & (lost | summary[MEASURES].isna()).all(axis=1)
    others = (~whole).groupby([summary[name] for name in CELL], sort=False).transform("any")
    return summary[~(whole & others)]


def sentences(summary: pd.DataFrame, trials: pd.DataFrame) -> list[str]:
    """Return a sentence for each precision that devices do not support, and for each suite what did not fit where."""
    return [*_unsupported(trials), *_too_large(summary)]


def _unsupported(trials: pd.DataFrame) -> list[str]:
    """Say by generation, or by device where that is not known, which precision is not supported."""
    costs = ~trials["phase"].isin([name for name, phase in PHASES.items() if phase.arithmetic])
    rows = trials[(trials["status"] == UNSUPPORTED) & ~(costs & is_emulated(trials["precision"]))]
    found: dict[str, list[str]] = {}
    for (name, architecture, device), _ in rows.groupby(["precision", "architecture", "device"], sort=False):
        on_gpu = generation_rank(str(architecture)) < generation_rank("")
        found.setdefault(str(name), []).append(str(architecture) if on_gpu else short(str(device)))
    return [f"{name}: not on {', '.join(dict.fromkeys(found[name]))}." for name in sorted(found, key=precision_rank)]


def _too_large(summary: pd.DataFrame) -> list[str]:
    """Say from which batch size on each precision ran out of memory."""
    found: dict[str, list[str]] = {}
    lost = summary[(summary[MEASURES] == OOM).any(axis=1)]
    for _, subject in lost.groupby(SUBJECT, sort=False):
        first = subject.groupby("precision", sort=False)["batch_size"].min()
        sizes = [f"{size:.0f} ({', '.join(map(str, group.index))})" for size, group in first.groupby(first)]
        devices = found.setdefault(str(subject["workload"].iloc[0]), [])
        devices.append(f"{subject['label'].iloc[0]} from batch {' and '.join(sizes)}")
    return [f"{workload}, out of memory: {'; '.join(devices)}." for workload, devices in found.items()]
