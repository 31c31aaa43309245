"""Differences between runs that are not being compared: a sentence for each, with equal values together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from bench.report.format import enumerated, known, titled
from bench.report.reading.completeness import remark
from bench.report.reading.labels import placement
from bench.report.reading.load import Run, Runs
from bench.results.environment import DEVICE, MACHINE
from bench.results.records import MEASURED
from bench.spec.precisions import precision_rank

RECIPE = ["suite", "parameters"]
"""Columns in which what is compared agrees, on whatever data and with whatever techniques it ran."""
OF_TRIALS = (
    ("train", "data", "data trained on", "Time per epoch and accuracy do not compare; steps are of random batches."),
    ("train", "epochs", "number of epochs", "Accuracies do not compare."),
    ("speed", "techniques", "techniques", "They change speed and memory at equal precision."),
)
"""Phases and columns whose values should be the same wherever a recipe is compared, with their name, and why."""
UNCOMMON = "None is common to all, so throughputs are of different work."
EDITED = "A difference may come from that, not from the machine or its software."
Facts = dict[tuple[str, str], dict[str, str]]
"""Values of circumstances that should be the same wherever figures are compared, by the run, or a device of a run: of
each by its name and its effect on a comparison, which is a whole sentence. An empty value is not known."""


def cautions(runs: Runs) -> list[str]:
    """Return cautions to read before comparing: data missing or odd in a run, and differences between runs."""
    return [*of_files(runs), *runs.remarks, *warnings(runs.runs, runs.tried())]


def of_files(runs: Runs) -> list[str]:
    """Return which runs are unfinished, and whose files were cut off."""
    missing = filter(None, map(remark, runs.runs))
    return [*missing, *(f"Run {run.label}: {text}" for run in runs.runs for text in run.remarks)]


def warnings(runs: Sequence[Run], trials: pd.DataFrame) -> list[str]:
    """Return a sentence for each difference that spoils a comparison; none for a single run without any.

    Only runs that measured the same recipe are compared.
    """
    recipes_of: dict[str, list[str]] = {}
    recipes = trials.groupby(RECIPE, sort=False)
    for recipe, rows in recipes:
        for (name, why), values in _facts(runs, rows).items():
            places: dict[str, list[str]] = {}
            for where, value in values.items():
                places.setdefault(value or "not known", []).append(where)
            if len(places) > 1:
                parts = "; ".join(f"{value} in {enumerated(where)}" for value, where in places.items())
                recipes_of.setdefault(f"Different {name}: {parts}. {why}", []).append(titled(*recipe))
    if len(recipes) == 1:
        return list(recipes_of)
    return [f"{', '.join(of_recipes)}: {text}" for text, of_recipes in recipes_of.items()]


def _facts(runs: Sequence[Run], rows: pd.DataFrame) -> Facts:
    """Return the circumstances of the runs of one recipe, whose trials are ``rows``."""
    facts: Facts = defaultdict(dict)
    kinds = rows.groupby("run")["device_kind"].max().to_dict()  # cuda where it has both
    used = set(zip(rows["run"], rows["placement"], strict=True))
    suite = rows["suite"].iloc[0]
    for run in runs:
        if run.label not in kinds:
            continue
        for key, part in MACHINE.items():
            if part.why and part.on in ("any", kinds[run.label]):
                facts[part.name, part.why][run.label] = _of_machine(run, key)
        for device in run.devices:
            for key, part in DEVICE.items():
                if part.why and (run.label, device["placement"]) in used:
                    value = device.get(key)
                    where = f"{run.label}'s {placement(device['placement'])}"
                    limit = "" if value is None else f"{value:,g} {part.unit}".strip()
                    facts[f"{part.name} of {device['name']}", part.why][where] = limit
        digests = {ref["name"]: ref.get("digest") for ref in run.part("request").get("suites", [])}
        facts[f"versions of {suite} (hash of its file, and of a script's arguments)", EDITED][run.label] = _words(
            digests.get(suite)
        )
    measured = rows[rows["status"].isin(MEASURED)]
    for phase, column, name, why in OF_TRIALS:
        facts[name, why] = _by_run(measured[measured["phase"] == phase], column)
    timed = measured[measured["phase"] == "speed"]
    sizes = [set(of_run) for _, of_run in timed.groupby("run")["batch_size"]]
    if sizes and not set.intersection(*sizes):
        facts["batch sizes", UNCOMMON] = _by_run(timed, "batch_size")
    seen = measured[measured["fp32_matmul"] != ""]
    seen = seen.assign(arithmetic=seen["fp32_matmul"] + " products, " + seen["fp32_conv"] + " convolutions")
    for name in sorted(seen["precision"].unique(), key=precision_rank):
        of_precision = _by_run(seen[seen["precision"] == name], "arithmetic")
        facts[f"arithmetic of {name}", "One name was not the same arithmetic."] = of_precision
    return facts


def _by_run(rows: pd.DataFrame, column: str) -> dict[str, str]:
    """Return the values that each run has in a column."""
    values = {}
    for run, of_run in rows.groupby("run", sort=False)[column]:
        texts = [value or "none" if isinstance(value, str) else f"{value:.0f}" for value in of_run.dropna()]
        values[str(run)] = _joined(texts)
    return values


def _of_machine(run: Run, key: str) -> str:
    """Return a version or a setting of a run's machine; of a cluster those of all nodes."""
    return _words(run.info.get(key) if key == "version" else run.environment.get(key))


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return str(value) if known(value) else ""


def _joined(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values)))
