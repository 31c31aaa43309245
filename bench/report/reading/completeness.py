"""Whether a run ended, and what of its plan is missing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from bench.report.reading.folders import shown
from bench.results.columns import listed
from bench.results.records import MEASURED, UNFIT
from bench.spec.phases import FIND_UNFIT, PHASES
from bench.spec.precisions import find_precision
from bench.spec.techniques import AblationStep

if TYPE_CHECKING:
    from bench.report.reading.load import Run

BATCH = re.compile(r"-b\d+$")
"""The end of a cell's name: what is before it is equal for one recipe on one device."""


def remark(run: Run, trials: pd.DataFrame) -> str:
    """Return a sentence on a run that did not end or lacks trials of its plan; empty where it is whole."""
    planned, ended = run.list("planned"), run.info.get("finished", "") is not None
    lost = missing(planned, trials)
    if ended and not lost:
        return ""
    state = "ended" if ended else "is unfinished: it was stopped, or is still running"
    if undecided := run.list("undecided"):
        state = f"was ended by --within; undecided: {', '.join(undecided)}"
    kinds = ", ".join(f"{count} {phase}" for phase, count in Counter(trial["phase"] for trial in lost).items())
    extent = f"{len(lost)} of {len(planned)} planned trials {'is' if len(lost) == 1 else 'are'} missing"
    advice = "" if ended else f" Go on with --resume {shown(run.folder)}."
    return f"Run {run.label} {state}; {extent}{f' ({kinds})' if lost else ''}.{advice}"


def missing_trials(info: Mapping[str, Any], trials: pd.DataFrame) -> pd.Series:
    """Count for each row of a run's trials the missing trials of its recipe on its device, of any batch size."""
    counts = Counter(BATCH.sub("", trial["cell"]) for trial in missing(info.get("planned", []), trials))
    return trials["cell"].map({cell: counts[BATCH.sub("", cell)] for cell in trials["cell"].unique()})


def missing(planned: list[dict[str, Any]], trials: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the planned trials that have no row, but for those that were left out on purpose.

    A trial whose arms did not all fit has fewer of them, or is a row for each alone, so arms are looked for one by one;
    each is known by what it adds, whatever it is added to. An emulated precision is trained whatever its memory phase
    says.
    """
    columns = ["cell", "phase", "replicate", "seed", "arm_precision", "arm_techniques", "status"]
    done, fit, unfit = set(), set(), set()
    rows = trials[columns].fillna({"replicate": 0})
    for *question, name, techniques, status in rows.itertuples(index=False):
        arm = AblationStep(precision=name, techniques=listed(techniques)).added
        cell, phase, replicate, seed = question
        done.add((cell, phase, replicate, _seed(phase, seed), arm))
        if phase == "memory" and status in MEASURED:  # of two processes one is enough
            fit.add((cell, arm))
        if phase in FIND_UNFIT and status in UNFIT:
            precision = find_precision(str(name)) if phase == "memory" and status == "unsupported" else None
            if precision is None or not precision.emulated:
                unfit.add((cell, arm))
    unfit -= fit
    return [
        trial
        for trial in planned
        if any(
            (trial["cell"], trial["phase"], trial["replicate"], _seed(trial["phase"], trial["seed"]), arm) not in done
            for arm in trial["arms"]
            if trial["phase"] in FIND_UNFIT or (trial["cell"], arm) not in unfit
        )
    ]


def _seed(phase: str, seed: int) -> int:
    """Return the seed that tells trials of a phase apart; 0 of one that is not repeated with others."""
    known = PHASES.get(phase)  # run.json may name a phase that is gone
    return 0 if known is not None and known.key != "seed" else seed
