"""Differences between runs that are not being compared: a sentence for each, with equal values together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from bench.report.format import enumerated, known, titled
from bench.report.reading.completeness import remark
from bench.report.reading.load import Run, Runs
from bench.results.environment import DEVICE, MACHINE
from bench.results.records import MEASURED

RECIPE = ["suite", "parameters"]
"""Columns in which what is compared agrees, on whatever data and with whatever techniques it ran."""
OF_TRIALS = (
    ("train", "data", "data trained on", "Time per epoch and accuracy do not compare; steps are of random batches."),
    ("train", "epochs", "number of epochs", "Accuracies do not compare."),
    ("speed", "techniques", "techniques", "They change speed and memory at equal precision."),
)
"""Phases and columns whose values should be the same wherever a recipe is compared, with their name, and why."""
EDITED = "A difference may come from the edit of the suite, not from the machine or its software."
Fact = tuple[str, str, str]
"""A circumstance that should be the same wherever figures are compared: its name, its effect on a comparison, which is
a whole sentence, and its value in a run, empty where it is not known."""


def environments(runs: Runs, sides: Sequence[Sequence[Run]]) -> list[tuple[str, str, str]]:
    """Return what differs between the machines of two sides: its name, and its values on each."""
    used = set(runs.trials["placement"])
    rows = []
    for key, part in MACHINE.items():
        old, new = (_joined(_of_machine(run, key) for run in side) for side in sides)
        rows.append((part.name, old, new))
    devices = [[device for run in side for device in run.devices if device["placement"] in used] for side in sides]
    for key, part in DEVICE.items():
        old, new = (_joined(_words(device.get(key)) for device in side) for side in devices)
        rows.append((titled(part.name, part.unit), old, new))
    return [(name, old or "–", new or "–") for name, old, new in rows if old != new]


def cautions(runs: Runs) -> list[str]:
    """Return cautions to read before comparing: data missing or odd in a run, and differences between runs."""
    return [*of_files(runs), *runs.remarks, *warnings(runs.runs, runs.tried())]


def of_files(runs: Runs) -> list[str]:
    """Return which runs are unfinished, and whose files were cut off."""
    missing = filter(None, map(remark, runs.runs))
    return [*missing, *(f"Run {run.label}: {text}" for run in runs.runs for text in run.remarks)]


def warnings(runs: Sequence[Run], trials: pd.DataFrame) -> list[str]:
    """Return a sentence for each difference that spoils a comparison; none for a single run.

    Only runs that measured the same recipe are compared.
    """
    recipes_of: dict[str, list[str]] = {}
    recipes = trials.groupby(RECIPE, sort=False)
    for recipe, rows in recipes:
        values: dict[tuple[str, str], dict[str, list[str]]] = {}
        for run in runs:
            of_run = rows[rows["run"] == run.label]
            for name, why, value in _facts(run, of_run) if len(of_run) else ():
                places = values.setdefault((name, why), {})
                places.setdefault(value or "not known", []).append(run.label)
        for (name, why), places in values.items():
            if len(places) > 1:
                parts = "; ".join(f"{value} in {enumerated(where)}" for value, where in places.items())
                recipes_of.setdefault(f"Different {name}: {parts}. {why}", []).append(titled(*recipe))
    if len(recipes) == 1:
        return list(recipes_of)
    return [f"{', '.join(of_recipes)}: {text}" for text, of_recipes in recipes_of.items()]


def _facts(run: Run, rows: pd.DataFrame) -> Iterator[Fact]:
    """Yield the circumstances of a run of a recipe, whose trials are ``rows``."""
    kind = rows["device_kind"].max()  # cuda where it has both
    for key, part in MACHINE.items():
        if part.why and part.on in ("any", kind):
            yield part.name, part.why, _of_machine(run, key)
    devices = [device for device in run.devices if device["placement"] in set(rows["placement"])]
    for name in dict.fromkeys(device["name"] for device in devices):
        for key, part in DEVICE.items():
            if part.why:
                limits = [device.get(key) for device in devices if device["name"] == name]
                texts = [f"{limit:,g} {part.unit}".strip() for limit in limits if limit is not None]
                yield f"{part.name} of {name}", part.why, _joined(texts)
    suite = rows["suite"].iloc[0]
    for ref in run.part("request").get("suites", []):
        if ref["name"] == suite:
            yield f"versions of suite {suite} (SHA-256 of its file)", EDITED, ref.get("digest") or ""
    measured = rows[rows["status"].isin(MEASURED)]
    for phase, column, name, why in OF_TRIALS:
        of_phase = measured.loc[measured["phase"] == phase, column].dropna()
        if len(of_phase):
            texts = [(value or "none") if isinstance(value, str) else f"{value:.0f}" for value in of_phase.unique()]
            yield name, why, _joined(texts)


def _of_machine(run: Run, key: str) -> str:
    """Return a version or a setting of a run's machine; of a cluster those of all nodes."""
    return _words(run.info.get(key) if key == "version" else run.environment.get(key))


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return str(value) if known(value) else ""


def _joined(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values)))
