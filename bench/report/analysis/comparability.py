"""Differences between runs that are not being compared: a sentence for each."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence

import pandas as pd

from bench.report.format import enumerated, titled
from bench.report.reading.load import Run, Runs
from bench.results.environment import DEVICE, MACHINE
from bench.results.records import MEASURED
from bench.spec.text import plain

# The columns that name a model: runs of one are compared, on whatever data and with whatever
# techniques they ran. A workload (``reading.load``) has these, too.
MODEL = ["suite", "parameters"]
# Phases and columns whose values should be the same wherever a model is compared, with their name,
# and why.
OF_TRIALS = (
    (
        "train",
        "data",
        "data trained on",
        "Time per epoch and accuracy do not compare; steps are of random batches.",
    ),
    ("train", "epochs", "number of epochs", "Accuracies do not compare."),
    ("speed", "techniques", "techniques", "They change speed and memory at equal precision."),
)
EDITED = "A difference may come from the edit of the suite, not from the machine or its software."
# A circumstance that should be the same wherever figures are compared: its name, its effect on a
# comparison, which is a whole sentence, and its values in a run, none where it is not known.
Fact = tuple[str, str, set[str]]


def cautions(runs: Runs) -> list[str]:
    """Return what to read before comparing: unfinished runs, and differences between runs."""
    return [*unfinished(runs), *runs.remarks, *warnings(runs.runs, runs.tried())]


def unfinished(runs: Runs) -> list[str]:
    """Return which runs are unfinished."""
    return [remark(run) for run in runs.runs if not run.is_finished]


def remark(run: Run) -> str:
    """Return a sentence on a run that did not end."""
    state = "is unfinished: it was stopped, or is still running"
    undecided = run.list("undecided")
    if undecided:
        state = f"was ended by --within; undecided: {', '.join(undecided)}"
    folder = plain(os.path.relpath(run.folder), one_line=True)
    return f"Run {run.label} {state}. Go on with --resume {folder}."


def warnings(runs: Sequence[Run], trials: pd.DataFrame) -> list[str]:
    """Return a sentence for each difference that spoils a comparison; none for a single run.

    Only runs that measured the same model are compared.
    """
    models_with: dict[str, list[str]] = defaultdict(list)
    models = trials.groupby(MODEL, sort=False)
    for model, rows in models:
        for difference in _differences(runs, rows):
            models_with[difference].append(titled(*model))
    if len(models) == 1:
        return list(models_with)
    sentences = []
    for difference, names in models_with.items():
        sentences.append(f"{', '.join(names)}: {difference}")
    return sentences


def _differences(runs: Sequence[Run], rows: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence for each fact that differs among the runs of one model's ``rows``."""
    runs_with: dict[tuple[str, str], dict[str, list[str]]] = {}
    for run in runs:
        of_run = rows[rows["run"] == run.label]
        if of_run.empty:
            continue
        for name, why, values in _facts(run, of_run):
            value = ", ".join(sorted(values)) or "not known"
            by_value = runs_with.setdefault((name, why), {})
            by_value.setdefault(value, []).append(run.label)
    for (name, why), by_value in runs_with.items():
        if len(by_value) == 1:
            continue
        parts = []
        for value, names in by_value.items():
            parts.append(f"{value} in {enumerated(names)}")
        yield f"Different {name}: {'; '.join(parts)}. {why}"


def _facts(run: Run, rows: pd.DataFrame) -> Iterator[Fact]:
    """Yield the circumstances of a run of a model, whose trials are ``rows``."""
    # It is cuda where the run has both kinds, whose software matters then.
    yield from _of_machine(run, kind=rows["device_kind"].max())
    yield from _of_devices(run, set(rows["placement"]))
    suite = rows["suite"].iloc[0]
    for ref in run.part("request").get("suites", []):
        if ref["name"] == suite and ref.get("digest"):
            name = f"versions of {suite} (hash of its file, and of a script's arguments)"
            yield name, EDITED, {ref["digest"]}
    measured = rows[rows["status"].isin(MEASURED)]
    for phase, column, name, why in OF_TRIALS:
        values = measured.loc[measured["phase"] == phase, column].dropna()
        if column == "epochs":
            values = values.map("{:.0f}".format)
        if len(values):
            yield name, why, set(values.replace("", "none"))


def _of_machine(run: Run, kind: str) -> Iterator[Fact]:
    facts = run.environment | {"version": run.info.get("version")}
    for key, part in MACHINE.items():
        if part.why and part.on in ("any", kind):
            value = facts.get(key) or []
            if not isinstance(value, list):
                value = [str(value)]
            yield part.name, part.why, set(value)


def _of_devices(run: Run, used: set[str]) -> Iterator[Fact]:
    """Yield the limits of the placements ``used``, those of devices of one name together."""
    devices = [device for device in run.devices if device["placement"] in used]
    for key, part in DEVICE.items():
        if not part.why:
            continue
        limits: dict[str, set[str]] = defaultdict(set)
        for device in devices:
            limit = device.get(key)
            if limit is not None:
                text = f"{limit:,g} {part.unit}"
                limits[device["name"]].add(text.strip())
        for name, texts in limits.items():
            yield f"{part.name} of {name}", part.why, texts
