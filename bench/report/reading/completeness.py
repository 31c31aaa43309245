"""Whether a run ended, and what of its plan is missing."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pandas as pd

from bench.report.reading.folders import shown
from bench.report.reading.load import Run
from bench.spec.ablation import identity
from bench.spec.phases import LADDER

UNFIT = ("oom", "unsupported", "nonfinite", "timeout", "failed")
"""Outcomes of the memory phase after which a precision is left out of its cell on purpose."""
FINDS_UNFIT = ("memory", "ladder_memory")
"""The phases that find out; the latter for the rungs of a ladder."""


def remark(run: Run, trials: pd.DataFrame) -> str:
    """Return a sentence on a run that did not end or lacks trials of its plan; empty where it is whole.

    Args:
        run: the run; a run.json that does not say when it ended says nothing of this.
        trials: its rows of trials.csv.
    """
    if "finished" not in run.info:
        return ""
    lost = missing(run.list("planned"), trials)
    ended = run.info["finished"] is not None
    if ended and not lost:
        return ""
    state = "ended" if ended else "is unfinished: it was stopped, or is still running"
    if not run.list("planned"):
        told = "; how many trials of its plan are missing is not known"
    else:
        kinds = ", ".join(f"{count} {phase}" for phase, count in Counter(one["phase"] for one in lost).items())
        told = f"; {len(lost)} of {len(run.list('planned'))} planned trials are missing" + (f" ({kinds})" * bool(lost))
    advice = "" if ended else f" Go on with --resume {shown(run.folder)}."
    return f"Run {run.label} {state}{told}.{advice}"


def missing(planned: list[Any], trials: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the planned trials that have no row, but for those that were left out on purpose.

    A trial whose arms did not all fit has fewer of them, or is a row for each alone, so that it goes by another name.
    """
    rows = [
        (_cell(trial, phase), phase, _tail(trial), identity(phase, precision), status)
        for trial, phase, precision, status in trials[["trial", "phase", "precision", "status"]].itertuples(index=False)
    ]
    done = {row[:4] for row in rows}
    unfit = {
        (cell, phase in LADDER, name)
        for cell, phase, _, name, status in rows
        if phase in FINDS_UNFIT and status in UNFIT
    }
    lost = []
    for one in planned:
        cell, phase, tail = _cell(one["trial"], one["phase"]), one["phase"], _tail(one["trial"])
        asked = [identity(phase, name) for name in one["precisions"]]
        left = [name for name in asked if phase in FINDS_UNFIT or (cell, phase in LADDER, name) not in unfit]
        if any((cell, phase, tail, name) not in done for name in left):
            lost.append(one)
    return lost


def _cell(trial: str, phase: str) -> str:
    """Return the part of a trial's name that stands for its cell."""
    return trial.rpartition(f"-{phase}")[0]


def _tail(trial: str) -> str:
    """Return the replicate or seed at the end of a trial's name."""
    found = re.search(r"-[rs]\d+$", trial)
    return found[0] if found else ""
