"""Whether a run ended, and what of its plan is missing."""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pandas as pd

from bench.results.columns import listed
from bench.results.records import MEASURED, UNFIT
from bench.spec.phases import FIND_UNFIT, PHASES
from bench.spec.precisions import emulates
from bench.spec.techniques import AblationStep
from bench.spec.text import plain

if TYPE_CHECKING:
    from bench.report.reading.load import Run

BATCH = re.compile(r"-b\d+$")
"""The end of a cell's name: what is before it is equal for one recipe on one device."""
SEEDED = [name for name, phase in PHASES.items() if phase.key == "seed"]
"""Phases whose trials differ in their seeds."""


def remark(run: Run) -> str:
    """Return a sentence on a run that did not end or lacks trials of its plan; empty where it is whole."""
    lost, ended = run.missing, run.info.get("finished", "") is not None
    if ended and not lost:
        return ""
    state = "ended" if ended else "is unfinished: it was stopped, or is still running"
    if undecided := run.list("undecided"):
        state = f"was ended by --within; undecided: {', '.join(undecided)}"
    extent = f"{len(lost)} of {len(run.list('planned'))} planned trials are missing"
    if lost:
        counts = Counter(trial["phase"] for trial in lost)
        extent += f" ({', '.join(f'{count} {phase}' for phase, count in counts.items())})"
    advice = "" if ended else f" Go on with --resume {plain(os.path.relpath(run.folder), one_line=True)}."
    return f"Run {run.label} {state}; {extent}.{advice}"


def missing_alike(lost: list[dict[str, Any]], trials: pd.DataFrame) -> pd.Series:
    """Count for each row of a run's trials the missing ones of its recipe on its device, of any batch size."""
    counts = Counter(BATCH.sub("", trial["cell"]) for trial in lost)
    return trials["cell"].map(lambda cell: counts[BATCH.sub("", cell)])


def missing(planned: list[dict[str, Any]], trials: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the planned trials that have no row, but for those that were left out on purpose.

    A trial whose arms did not all fit has fewer of them, or is a row for each alone, so arms are looked for one by one;
    each is known by what it adds, whatever it is added to. An emulated precision is trained whatever its memory phase
    says.
    """
    columns = ["cell", "phase", "replicate", "seed", "arm_precision", "arm_techniques", "status"]
    done, fit, unfit = set(), set(), set()
    rows = trials[columns].fillna({"replicate": 0})
    for cell, phase, replicate, seed, name, techniques, status in rows.itertuples(index=False):
        arm = AblationStep(precision=name, techniques=listed(techniques)).added
        done.add((cell, phase, replicate, seed, arm))
        if phase in FIND_UNFIT and status in MEASURED:
            fit.add((cell, arm))
        elif phase in FIND_UNFIT and status in UNFIT and not (status == "unsupported" and emulates(name)):
            unfit.add((cell, arm))
    unfit -= fit  # of two processes one is enough
    lost = []
    for trial in planned:
        cell, phase = trial["cell"], trial["phase"]
        seed = trial["seed"] if phase in SEEDED else 0  # that of other phases is in no row
        for arm in trial["arms"]:
            is_left_out = phase not in FIND_UNFIT and (cell, arm) in unfit
            if (cell, phase, trial["replicate"], seed, arm) not in done and not is_left_out:
                lost.append(trial)
                break
    return lost
