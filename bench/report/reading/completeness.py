"""Whether a run ended, and what of its plan is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from bench.report.reading.folders import shown
from bench.report.reading.load import Run
from bench.results.columns import listed
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
    columns = trials[["cell", "phase", "replicate", "seed", "arm_precision", "arm_techniques", "status"]]
    rows = [
        (_question(cell, phase, replicate, seed), _arm(precision, listed(techniques)), status)
        for cell, phase, replicate, seed, precision, techniques, status in columns.itertuples(index=False)
    ]
    done = {row[:2] for row in rows}
    unfit = {
        (question[0], question[1] in LADDER, arm)
        for question, arm, status in rows
        if question[1] in FINDS_UNFIT and status in UNFIT
    }
    lost = []
    for one in planned:
        cell, phase = one["cell"], one["phase"]
        question = _question(cell, phase, one["replicate"], one["seed"])
        left = [arm for arm in one["arms"] if phase in FINDS_UNFIT or (cell, phase in LADDER, arm) not in unfit]
        if any((question, arm) not in done for arm in left):
            lost.append(one)
    return lost


def _question(cell: str, phase: str, replicate: float, seed: float) -> tuple[str, str, float, float]:
    """Return what a trial is known by beside its arms; a phase that is not repeated has no replicate in its row."""
    return cell, phase, 0 if pd.isna(replicate) else replicate, seed


def _arm(precision: str, techniques: Sequence[str]) -> str:
    """Return what an arm is known by whatever it is added to: the last technique of an ablation step."""
    return f"+ {techniques[-1]}" if techniques else precision
