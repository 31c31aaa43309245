"""Whether a run ended, and what of its plan is missing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from bench.report.reading.folders import shown
from bench.report.reading.load import Run, is_emulated
from bench.results.columns import listed
from bench.results.csv_file import counting, read
from bench.results.records import UNFIT
from bench.results.store import FAILURES
from bench.spec.phases import LADDER
from bench.spec.techniques import AblationStep

FINDS_UNFIT = ("memory", "ladder_memory")
"""The phases that find out which precisions, or ablation steps, are left out of their cell on purpose."""


def remark(run: Run, trials: pd.DataFrame) -> str:
    """Return a sentence on a run that did not end or lacks trials of its plan; empty where it is whole.

    Args:
        run: the run; a run.json that does not say when it ended tells nothing of this.
        trials: its rows of trials.csv.
    """
    if "finished" not in run.info:
        lacks = f"Run {run.label}: its run.json lacks the request and the plan, so what is missing is not known."
        return "" if run.part("request") or run.list("planned") else lacks
    planned, ended = run.list("planned"), run.info["finished"] is not None
    lost = missing(planned, trials)
    if ended and not lost:
        return ""
    state = "ended" if ended else "is unfinished: it was stopped, or is still running"
    if planned:
        kinds = ", ".join(f"{count} {phase}" for phase, count in Counter(trial["phase"] for trial in lost).items())
        extent = f"{len(lost)} of {len(planned)} planned trials {'is' if len(lost) == 1 else 'are'} missing" + (
            f" ({kinds})" if lost else ""
        )
    else:
        extent = "how many trials of its plan are missing is not known"
    advice = "" if ended else f" Go on with --resume {shown(run.folder)}."
    return f"Run {run.label} {state}; {extent}.{advice}"


def finished(planned: list[dict[str, Any]], path: Path) -> int:
    """Return how many planned trials a run that goes on need not measure: all but the missing and the failed ones.

    Args:
        planned: the run's plan.
        path: its trials.csv.

    Raises:
        UsageError: that is damaged.
    """
    last = counting(read(path))
    return len(planned) - len(missing(planned, last[~last["status"].isin(FAILURES)])) if len(last) else 0


def missing(planned: list[dict[str, Any]], trials: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the planned trials that have no row, but for those that were left out on purpose.

    A trial whose arms did not all fit has fewer of them, or is a row for each alone, so arms are looked for one by one;
    each is known by what it adds, whatever it is added to. An emulated precision is trained whatever its memory phase
    says.
    """
    columns = ["cell", "phase", "replicate", "seed", "arm_precision", "arm_techniques", "status"]
    done, unfit = set(), set()
    rows = trials[columns].fillna({"replicate": 0}).assign(emulated=is_emulated(trials["arm_precision"]))
    for *question, precision, techniques, status, emulated in rows.itertuples(index=False):
        arm = AblationStep(precision=precision, techniques=listed(techniques)).added
        done.add((*question, arm))
        cell, phase = question[:2]
        measured_all_the_same = phase == "memory" and emulated and status == "unsupported"
        if phase in FINDS_UNFIT and status in UNFIT and not measured_all_the_same:
            unfit.add((cell, phase in LADDER, arm))
    return [
        trial
        for trial in planned
        if any(
            (trial["cell"], trial["phase"], trial["replicate"], trial["seed"], arm) not in done
            for arm in trial["arms"]
            if trial["phase"] in FINDS_UNFIT or (trial["cell"], trial["phase"] in LADDER, arm) not in unfit
        )
    ]
