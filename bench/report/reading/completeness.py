"""What of the plan of a run that did not end is missing."""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pandas as pd

from bench.spec.text import plain

if TYPE_CHECKING:
    from bench.report.reading.load import Run

BATCH = re.compile(r"-b\d+$")
"""The end of a cell's name: what is before it is equal for one recipe on one device."""


def remark(run: Run) -> str:
    """Return a sentence on a run that did not end; empty on one that did."""
    if run.is_finished:
        return ""
    state = "is unfinished: it was stopped, or is still running"
    if undecided := run.list("undecided"):
        state = f"was ended by --within; undecided: {', '.join(undecided)}"
    counts = Counter(trial["phase"] for trial in run.missing)
    phases = ", ".join(f"{count} {phase}" for phase, count in counts.items())
    extent = f"{len(run.missing)} of {len(run.list('planned'))} planned trials are missing ({phases})"
    folder = plain(os.path.relpath(run.folder), one_line=True)
    return f"Run {run.label} {state}; {extent}. Go on with --resume {folder}."


def missing_alike(lost: list[dict[str, Any]], trials: pd.DataFrame) -> pd.Series:
    """Count for each row of a run's trials the missing ones of its recipe on its device, of any batch size."""
    counts = Counter(BATCH.sub("", trial["cell"]) for trial in lost)
    return trials["cell"].map(lambda cell: counts[BATCH.sub("", cell)])


def missing(planned: list[dict[str, Any]], trials: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the planned trials that have no row: those to come, and those that were left out on purpose."""
    done = set(trials["trial"])
    return [trial for trial in planned if trial["trial"] not in done]
