"""Differences between runs that are not being compared: a sentence for each, with equal values together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

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
BATCH_SIZES = "None is common to all, so throughputs are of different work."
OF_TRIALS = {
    "train": {
        "data": ("data trained on", "Time per epoch and accuracy do not compare; steps are timed on random batches."),
        "epochs": ("number of epochs", "Accuracies do not compare."),
    },
    "speed": {"techniques": ("techniques", "They change speed and memory at equal precision.")},
}
"""By phase and column: the name of what should be the same wherever a recipe is compared, and why."""


class Fact(NamedTuple):
    """The value of a circumstance that should be the same wherever figures are compared."""

    name: str
    why: str
    """Its effect on a comparison: a whole sentence."""
    where: str
    """The run, or a device of a run."""
    value: str
    """Empty is not known."""


def environments(runs: Runs, sides: Sequence[Sequence[Run]]) -> list[tuple[str, str, str]]:
    """Return what differs between the machines of two sides: its name, and its values on each."""
    used = set(runs.trials["placement"])
    devices = [[device for run in side for device in run.devices if device["placement"] in used] for side in sides]
    rows = []
    for key, part in MACHINE.items():
        old, new = (_joined(_of_machine(run, key) for run in side) for side in sides)
        rows.append((part.name, old, new))
    for key, part in DEVICE.items():
        old, new = (_joined(_words(device.get(key)) for device in side) for side in devices)
        rows.append((f"{part.name} ({part.unit})" if part.unit else part.name, old, new))
    return [(name, old or "–", new or "–") for name, old, new in rows if old != new]


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
    titles: dict[str, list[str]] = {}
    recipes = trials.groupby(RECIPE, sort=False)
    for recipe, rows in recipes:
        labels = set(rows["run"])
        values: dict[tuple[str, str], dict[str, str]] = {}
        for fact in _facts([run for run in runs if run.label in labels], rows):
            values.setdefault((fact.name, fact.why), {})[fact.where] = fact.value
        for (name, why), by_place in values.items():
            if len(set(by_place.values())) > 1:
                titles.setdefault(_sentence(name, why, by_place), []).append(titled(*recipe))
    if len(recipes) == 1:
        return list(titles)
    return [f"{', '.join(of_recipes)}: {text}" for text, of_recipes in titles.items()]


def _sentence(name: str, why: str, values: dict[str, str]) -> str:
    """Write a fact as one sentence, its values grouped, the most frequent first and the unknown last."""
    groups: dict[str, list[str]] = {}
    for where, value in values.items():
        groups.setdefault(value, []).append(where)
    ordered = sorted(groups.items(), key=lambda group: (not group[0], -len(group[1])))
    parts = "; ".join(f"{value or 'not known'} in {enumerated(where)}" for value, where in ordered)
    return f"Different {name}: {parts}. {why}"


def _facts(runs: Sequence[Run], rows: pd.DataFrame) -> Iterator[Fact]:
    """Yield the circumstances of runs of one recipe, whose trials are ``rows``."""
    on_gpu = set(rows.loc[rows["device_kind"] != "cpu", "run"])
    used = set(zip(rows["run"], rows["placement"], strict=True))
    suite = rows["suite"].iloc[0]
    for run in runs:
        for key, part in MACHINE.items():
            if part.why and part.on in ("any", "cuda" if run.label in on_gpu else "cpu"):
                yield Fact(part.name, part.why, run.label, _of_machine(run, key))
        for device in run.devices:
            for key, part in DEVICE.items():
                if part.why and (run.label, device["placement"]) in used:
                    value = device.get(key)
                    limit = "" if value is None else f"{value:,g} {part.unit}".strip()
                    where = f"{run.label}'s {placement(device['placement'])}"
                    yield Fact(f"{part.name} of {device['name']}", part.why, where, limit)
        if run.part("request"):
            digests = {ref["name"]: ref.get("digest") for ref in run.part("request").get("suites", [])}
            why = "A difference may come from the edit of the suite, not from the machine or its software."
            yield Fact(f"versions of suite {suite} (SHA-256 of its file)", why, run.label, _words(digests.get(suite)))
    measured = rows[rows["status"].isin(MEASURED)]
    for phase, columns in OF_TRIALS.items():
        of_phase = measured[measured["phase"] == phase]
        for column, (name, why) in columns.items():
            yield from _by_run(of_phase, column, name, why)
    timed = measured[measured["phase"] == "speed"]
    sizes = [set(of_run) for _, of_run in timed.groupby("run")["batch_size"]]
    if sizes and not set.intersection(*sizes):
        yield from _by_run(timed, "batch_size", "batch sizes", BATCH_SIZES)
    seen = measured[measured["fp32_matmul"] != ""]
    seen = seen.assign(arithmetic=seen["fp32_matmul"] + " products, " + seen["fp32_conv"] + " convolutions")
    for name in sorted(seen["precision"].unique(), key=precision_rank):
        of_precision = seen[seen["precision"] == name]
        yield from _by_run(of_precision, "arithmetic", f"arithmetic of {name}", "One name was not the same arithmetic.")


def _by_run(rows: pd.DataFrame, column: str, name: str, why: str) -> Iterator[Fact]:
    """Yield the values that each run has in a column."""
    for run, values in rows.groupby("run", sort=False)[column]:
        is_number = values.dtype.kind in "if"
        texts = values.dropna().map("{:.0f}".format) if is_number else values.replace("", "none")
        yield Fact(name, why, str(run), _joined(texts))


def _of_machine(run: Run, key: str) -> str:
    """Return a version or a setting of a run's machine; of a cluster those of all nodes."""
    return _words(run.info.get(key) if key == "version" else run.environment.get(key))


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return str(value) if known(value) else ""


def _joined(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values)))
