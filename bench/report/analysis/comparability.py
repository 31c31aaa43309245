"""Differences between runs that are not being compared: a sentence for each, with equal values together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


class Fact(NamedTuple):
    """A circumstance that should be the same wherever figures are compared."""

    name: str
    values: Mapping[str, str]
    """By run, or by run and device; empty is not known."""
    why: str
    """Its effect on a comparison: a whole sentence."""


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
    trials = runs.tried()
    missing = [remark(run, trials[trials["run"] == run.label]) for run in runs.runs]
    return [*filter(None, missing), *(f"Run {run.label}: {text}" for run in runs.runs for text in run.remarks)]


def warnings(runs: Sequence[Run], trials: pd.DataFrame) -> list[str]:
    """Return a sentence for each difference that spoils a comparison; none for a single run without any.

    Only runs that measured the same recipe are compared.
    """
    recipes = [(titled(*key), rows) for key, rows in trials.groupby(RECIPE, sort=False)]
    titles: dict[str, list[str]] = {}
    for title, rows in recipes:
        compared = [run for run in runs if run.label in set(rows["run"])]
        for fact in _facts(compared, rows):
            if len(set(fact.values.values())) > 1:
                titles.setdefault(sentence(fact), []).append(title)
    if len(recipes) == 1:
        return list(titles)
    return [f"{', '.join(of_recipes)}: {text}" for text, of_recipes in titles.items()]


def sentence(fact: Fact) -> str:
    """Write a fact as one sentence, its values grouped, the most frequent first and the unknown last."""
    groups: dict[str, list[str]] = {}
    for where, value in fact.values.items():
        groups.setdefault(value, []).append(where)
    ordered = sorted(groups.items(), key=lambda group: (not group[0], -len(group[1])))
    parts = "; ".join(f"{value or 'not known'} in {enumerated(where)}" for value, where in ordered)
    return f"Different {fact.name}: {parts}. {fact.why}"


def _facts(runs: Sequence[Run], rows: pd.DataFrame) -> Iterator[Fact]:
    """Yield the circumstances of runs of one recipe, whose trials are ``rows``."""
    on_gpu = set(rows.loc[rows["device_kind"] != "cpu", "run"])
    for key, part in MACHINE.items():
        if part.why:
            relevant = [run for run in runs if part.on in ("any", "cuda" if run.label in on_gpu else "cpu")]
            yield Fact(part.name, {run.label: _of_machine(run, key) for run in relevant}, part.why)
    yield from _limits(runs, rows)
    suite = rows["suite"].iloc[0]
    yield Fact(
        f"versions of suite {suite} (SHA-256 of its file)",
        {run.label: _digest(run, suite) for run in runs if run.part("request")},
        "A difference may come from the edit of the suite, not from the machine or its software.",
    )
    trained = rows[rows["phase"] == "train"]
    yield Fact(
        "data trained on",
        _by_run(trained, "data"),
        "Time per epoch and accuracy do not compare; steps are timed on random batches, so they do.",
    )
    timed = rows[(rows["phase"] == "speed") & rows["status"].isin(MEASURED)]
    sizes = [set(of_run) for _, of_run in timed.groupby("run")["batch_size"]]
    if sizes and not set.intersection(*sizes):
        written = _by_run(timed, "batch_size")
        yield Fact("batch sizes", written, "None is common to all, so throughputs are of different work.")
    yield Fact(
        "techniques",
        _by_run(rows.replace({"techniques": {"": "none"}}), "techniques"),
        "Layouts, fused optimizers and compilation change speed and memory at equal precision.",
    )
    yield Fact("number of epochs", _by_run(trained[trained["epochs"].notna()], "epochs"), "Accuracies do not compare.")
    read = rows[rows["status"].isin(MEASURED) & (rows["fp32_matmul"] != "")]
    read = read.assign(arithmetic=read["fp32_matmul"] + " products, " + read["fp32_conv"] + " convolutions")
    for name in sorted(read["precision"].unique(), key=precision_rank):
        arithmetic = _by_run(read[read["precision"] == name], "arithmetic")
        yield Fact(f"arithmetic of {name}", arithmetic, "One name was not the same arithmetic.")


def _limits(runs: Sequence[Run], rows: pd.DataFrame) -> Iterator[Fact]:
    """Yield what may be set on a device, among devices of one name."""
    used = set(zip(rows["run"], rows["placement"], strict=True))
    devices = [(run.label, device) for run in runs for device in run.devices]
    for key, part in DEVICE.items():
        limits: dict[str, dict[str, str]] = defaultdict(dict)
        for label, device in devices:
            if part.why and (label, device["placement"]) in used:
                value = device.get(key)
                limit = "" if value is None else f"{value:,g} {part.unit}".strip()
                limits[device["name"]][f"{label}'s {placement(device['placement'])}"] = limit
        for name, values in limits.items():
            yield Fact(f"{part.name} of {name}", values, part.why)


def _of_machine(run: Run, key: str) -> str:
    """Return a version or a setting of a run's machine; of a cluster those of all nodes."""
    return _words(run.info.get(key) if key == "version" else run.environment.get(key))


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return str(value) if known(value) else ""


def _digest(run: Run, suite: str) -> str:
    """Return the digest of a recipe's text, as the run had it."""
    digests = {ref["name"]: ref.get("digest") for ref in run.part("request").get("suites", [])}
    return _words(digests.get(suite))


def _by_run(rows: pd.DataFrame, column: str) -> dict[str, str]:
    """Write the values of a column for each run."""
    values = rows[column].map("{:.0f}".format) if rows[column].dtype.kind in "if" else rows[column]
    return {str(run): _joined(of_run) for run, of_run in values.groupby(rows["run"], sort=False)}


def _joined(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values)))
