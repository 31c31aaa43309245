"""Differences between runs that are not being compared: a sentence for each, with equal values together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pandas as pd

from bench.report.format import enumerated, titled
from bench.report.reading.load import Run, Runs
from bench.results.environment import DEVICE, MACHINE
from bench.results.records import MEASURED
from bench.spec.text import plain

# Columns in which what is compared agrees, on whatever data and with whatever techniques it ran.
RECIPE = ["suite", "parameters"]
# Phases and columns whose values should be the same wherever a recipe is compared, with their name,
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
    """Return cautions to read before comparing: runs that did not end, and differences between runs."""
    return [*unfinished(runs), *runs.remarks, *warnings(runs.runs, runs.tried())]


def unfinished(runs: Runs) -> list[str]:
    """Return which runs are unfinished."""
    return [remark(run) for run in runs.runs if not run.is_finished]


def remark(run: Run) -> str:
    """Return a sentence on a run that did not end."""
    state = "is unfinished: it was stopped, or is still running"
    if undecided := run.list("undecided"):
        state = f"was ended by --within; undecided: {', '.join(undecided)}"
    folder = plain(os.path.relpath(run.folder), one_line=True)
    return f"Run {run.label} {state}. Go on with --resume {folder}."


def warnings(runs: Sequence[Run], trials: pd.DataFrame) -> list[str]:
    """Return a sentence for each difference that spoils a comparison; none for a single run.

    Only runs that measured the same recipe are compared.
    """
    recipes_of: dict[str, list[str]] = {}
    recipes = trials.groupby(RECIPE, sort=False)
    for recipe, rows in recipes:
        places_of: dict[tuple[str, str], dict[str, list[str]]] = {}
        for run in runs:
            of_run = rows[rows["run"] == run.label]
            if of_run.empty:
                continue
            for name, why, values in _facts(run, of_run):
                value = ", ".join(sorted(values)) or "not known"
                places = places_of.setdefault((name, why), {})
                places.setdefault(value, []).append(run.label)
        for (name, why), places in places_of.items():
            if len(places) > 1:
                parts = [f"{value} in {enumerated(where)}" for value, where in places.items()]
                recipes_of.setdefault(f"Different {name}: {'; '.join(parts)}. {why}", []).append(
                    titled(*recipe)
                )
    if len(recipes) == 1:
        return list(recipes_of)
    return [f"{', '.join(of_recipes)}: {text}" for text, of_recipes in recipes_of.items()]


def _facts(run: Run, rows: pd.DataFrame) -> Iterator[Fact]:
    """Yield the circumstances of a run of a recipe, whose trials are ``rows``."""
    kind = rows["device_kind"].max()  # cuda where it has both
    facts = run.environment | {"version": run.info.get("version")}
    for key, part in MACHINE.items():
        if part.why and part.on in ("any", kind):
            value = facts.get(key)
            yield (
                part.name,
                part.why,
                set(value) if isinstance(value, list) else {str(value)} if value else set(),
            )
    used = set(rows["placement"])
    for key, part in DEVICE.items():
        if part.why:
            limits: dict[str, set[str]] = {}
            for device in run.devices:
                if device["placement"] in used and device.get(key) is not None:
                    limits.setdefault(device["name"], set()).add(
                        f"{device[key]:,g} {part.unit}".strip()
                    )
            for name, texts in limits.items():
                yield f"{part.name} of {name}", part.why, texts
    suite = rows["suite"].iloc[0]
    for ref in run.part("request").get("suites", []):
        if ref["name"] == suite and ref.get("digest"):
            yield (
                f"versions of {suite} (hash of its file, and of a script's arguments)",
                EDITED,
                {ref["digest"]},
            )
    measured = rows[rows["status"].isin(MEASURED)]
    for phase, column, name, why in OF_TRIALS:
        values = measured.loc[measured["phase"] == phase, column].dropna()
        if len(values):
            yield (
                name,
                why,
                {
                    (value or "none") if isinstance(value, str) else f"{value:.0f}"
                    for value in values
                },
            )
