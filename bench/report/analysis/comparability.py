"""Differences between runs that are not being compared: a sentence for each, with equal values together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from bench.report.format import enumerated, known, titled
from bench.report.reading.completeness import remark
from bench.report.reading.labels import placement
from bench.report.reading.load import KEY, Run, Runs
from bench.results.environment import DEVICE, MACHINE
from bench.results.records import MEASURED
from bench.spec.precisions import precision_rank

RECIPE = ["suite", "parameters"]
"""Columns in which what is compared agrees, on whatever data and with whatever techniques it ran."""
SOFTWARE = {key: part for key, part in MACHINE.items() if part.why and key != "version"}
LIMITS = {key: part for key, part in DEVICE.items() if part.why}
SWITCHES = ["fp32_matmul", "fp32_conv"]


def software(run: Run, placement: str, key: str) -> str | None:
    """Return a version, or the host, where a placement was measured; None where that is not known."""
    machine = run.environment
    nodes = [node for node in machine.get("nodes", []) if node["accelerator"] == placement]  # of a cluster
    values = [node.get(key, machine.get(key)) for node in nodes or [machine]]
    return ", ".join(dict.fromkeys(str(value) for value in values if value not in (None, ""))) or None


def digest(run: Run, suite: str) -> str | None:
    """Return the digest of a recipe's text, as the run had it."""
    suites = run.part("request").get("suites", [])
    return next((str(ref["digest"]) for ref in suites if ref["name"] == suite and ref.get("digest")), None)


def environments(runs: Runs, sides: Sequence[Sequence[Run]]) -> list[tuple[str, str, str]]:
    """Return what differs between the machines of two sides: its name, and its values on each."""
    rows = [
        (
            part.name,
            *(_values((run.info if key == "version" else run.environment).get(key) for run in side) for side in sides),
        )
        for key, part in MACHINE.items()
    ]
    used = runs.trials["placement"].unique()
    for name in used:
        devices = [[device for run in side for device in run.devices if device["placement"] == name] for side in sides]
        of = "" if len(used) == 1 else f" of {name}"
        for key, part in DEVICE.items() if all(devices) else ():
            title = f"{part.name} ({part.unit}){of}" if part.unit else f"{part.name}{of}"
            rows.append((title, *(_values(device.get(key) for device in side) for side in devices)))
    return [(name, old, new) for name, old, new in rows if old != new]


def _values(values: Iterable[Any]) -> str:
    """Write the different values of a side; what is not known is a dash."""
    words = (", ".join(map(str, value)) if isinstance(value, list) else value for value in values)
    return ", ".join(sorted({str(word) if known(word) and word != "" else "–" for word in words}))


class Fact(NamedTuple):
    """A circumstance that should be the same wherever figures are compared."""

    name: str
    values: Mapping[str, str | None]
    """By run, or by run and device or node; None is not known."""
    why: str
    """Its effect on a comparison: a whole sentence."""
    unknown: str = ""
    """A whole sentence on ``{runs}``, of none of which it is known; empty where that needs no sentence."""


def cautions(runs: Runs) -> list[str]:
    """Return cautions to read before comparing: data missing or odd in a run, and differences between runs."""
    return [*of_files(runs), *runs.remarks, *warnings(runs.runs, runs.tried())]


def of_files(runs: Runs) -> list[str]:
    """Return which runs are unfinished, and the faults of files: cut off, edited, without rows, or copies of others."""
    trials = runs.tried()
    missing = [remark(run, trials[trials["run"] == run.label]) for run in runs.runs]
    return [*filter(None, missing), *(f"Run {run.label}: {text}" for run in runs.runs for text in run.remarks)]


def warnings(runs: Sequence[Run], trials: pd.DataFrame) -> list[str]:
    """Return a sentence for each difference that spoils a comparison; none for a single run without any.

    Only runs that measured the same recipe are compared.
    """
    recipes = [(titled(*key), rows) for key, rows in trials.groupby(RECIPE, sort=False)]
    sentences: dict[str, list[str]] = {}
    for title, rows in recipes:
        some = [run for run in runs if run.label in set(rows["run"])]
        for fact in (*_machine(some, rows), *_devices(some, rows), *_request(some, rows), *_arms(rows)):
            if text := sentence(fact):
                sentences.setdefault(text, []).append(title)
    several = len(recipes) > 1
    return [f"{', '.join(titles)}: {text}" if several else text for text, titles in sentences.items()]


def sentence(fact: Fact) -> str:
    """Write a fact as one sentence, its values grouped; empty where there is no more than one value."""
    groups: dict[str | None, list[str]] = {}
    for where, value in fact.values.items():
        groups.setdefault(value, []).append(where)
    known = sorted((value for value in groups if value is not None), key=lambda value: -len(groups[value]))
    if len(groups) < 2:
        return fact.unknown.format(runs=enumerated(fact.values)) if None in groups and len(fact.values) > 1 else ""
    parts = [f"{value} in {enumerated(groups[value])}" for value in known]
    parts += [f"not known in {enumerated(groups[None])}"] if None in groups else []
    return f"Different {fact.name}: {'; '.join(parts)}. {fact.why}"


def _machine(runs: Sequence[Run], rows: pd.DataFrame) -> Iterable[Fact]:
    """Yield the versions of ampmeter and of the software: of GPUs' libraries only where there are GPUs."""
    versions = {run.label: str(run.info["version"]) for run in runs if run.info.get("version")}
    yield Fact(MACHINE["version"].name, versions, MACHINE["version"].why)
    on_gpu = set(rows.loc[rows["device_kind"] != "cpu", "run"])
    for key, part in SOFTWARE.items():
        relevant = [run for run in runs if part.on in ("any", "cuda" if run.label in on_gpu else "cpu")]
        values = [_versions(run, rows, key) for run in relevant if key in run.environment]
        yield Fact(part.name, dict(item for of_run in values for item in of_run), part.why)


def _versions(run: Run, rows: pd.DataFrame, key: str) -> Iterable[tuple[str, str | None]]:
    """Yield a run's version of some software; on a cluster whose nodes differ, each node's."""
    placements = rows.loc[rows["run"] == run.label, "placement"].unique()
    versions = {str(placement): software(run, str(placement), key) for placement in placements}
    if len(set(versions.values())) < 2:
        yield run.label, next(iter(versions.values()))
    else:
        yield from ((f"{run.label}'s {placement}", value) for placement, value in versions.items())


def _devices(runs: Sequence[Run], rows: pd.DataFrame) -> Iterable[Fact]:
    """Yield what may be set on a device, among devices of one name."""
    used = set(zip(rows["run"], rows["placement"], strict=True))
    devices = [
        (run.label, device) for run in runs for device in run.devices if (run.label, device["placement"]) in used
    ]
    for name in dict.fromkeys(device["name"] for _, device in devices):
        alike = [(label, device) for label, device in devices if device["name"] == name]
        several = len(alike) > len({label for label, _ in alike})
        labels = [f"{run}'s {placement(device['placement'])}" if several else run for run, device in alike]
        for key, part in LIMITS.items():
            limits = [
                f"{value:,g} {part.unit}".strip() if (value := device.get(key)) is not None else None
                for _, device in alike
            ]
            yield Fact(f"{part.name} of {name}", dict(zip(labels, limits, strict=True)), part.why)


def _by_run(rows: pd.DataFrame, column: str, write: Callable[[pd.Series], str]) -> dict[str, str]:
    """Write the values of a column for each run."""
    return {str(run): write(values) for run, values in rows.groupby("run", sort=False)[column]}


def _names(values: Iterable[object]) -> str:
    return ", ".join(sorted({str(value) for value in values} - {""}))


def _request(runs: Sequence[Run], rows: pd.DataFrame) -> Iterable[Fact]:
    """Yield the request's circumstances: the recipe's text, the data."""
    suite = rows["suite"].iloc[0]
    digests = {run.label: digest(run, suite) for run in runs if run.part("request")}
    yield Fact(
        f"versions of suite {suite} (SHA-256 of its file)",
        digests,
        "A difference may come from the edit of the suite, not from the machine or its software.",
        unknown="{runs} do not record which version of their suite they ran. If its file was edited between them, "
        "measure again with one version.",
    )
    sources = _by_run(rows[rows["phase"].isin(("train", "numerics", "ladder"))], "data", _names)
    yield Fact(
        "data trained on",
        sources,
        "Time per epoch and accuracy do not compare; steps are timed on random batches, so they do.",
    )
    from_files = [run for run in runs if sources.get(run.label, "").startswith(("folder:", "text:"))]
    hosts = {run.environment.get("host") for run in from_files}
    if len(hosts) > 1 and len({sources[run.label] for run in from_files}) == 1:
        prints = {run.label: ", ".join(run.fingerprints.values()) or None for run in from_files}
        yield Fact(
            "data (fingerprint)",
            prints,
            "One path on two machines held other data.",
            unknown="{runs} read one path on two machines and do not record the data. If the files differ, accuracies "
            "and times per epoch do not compare.",
        )


def _arms(rows: pd.DataFrame) -> Iterable[Fact]:
    """Yield how the arms were measured: batch sizes, techniques, processes, epochs, switches."""
    timed = rows[(rows["phase"] == "speed") & rows["status"].isin(MEASURED)]
    sizes = [set(group) for _, group in timed.groupby("run", sort=False)["batch_size"]]
    if sizes and not set.intersection(*sizes):
        written = _by_run(timed, "batch_size", lambda sizes: ", ".join(f"{size:.0f}" for size in sorted(set(sizes))))
        yield Fact("batch sizes", written, "None is common to all, so throughputs are of different work.")
    yield Fact(
        "techniques",
        _by_run(rows, "techniques", lambda names: _names(names) or "none"),
        "Layouts, fused optimizers and compilation change speed and memory at equal precision.",
    )
    counts = timed.groupby(KEY, sort=False).size().reset_index(name="processes")
    yield Fact(
        "number of processes",
        _by_run(counts, "processes", _range),
        "With one process an interval says nothing of the next, with two it is very wide.",
    )
    trained = rows[(rows["phase"] == "train") & rows["epochs"].notna()]
    yield Fact("number of epochs", _by_run(trained, "epochs", _range), "Accuracies do not compare.")
    read = rows[rows["status"].isin(MEASURED) & (rows[SWITCHES] != "").any(axis=1)]
    read = read.assign(arithmetic=read[SWITCHES[0]] + " products, " + read[SWITCHES[1]] + " convolutions")
    for name in sorted(read["precision"].unique(), key=precision_rank):
        words = _by_run(read[read["precision"] == name], "arithmetic", lambda words: "; ".join(sorted(set(words))))
        yield Fact(f"arithmetic of {name}", words, "One name was not the same arithmetic.")


def _range(values: pd.Series) -> str:
    low, high = values.min(), values.max()
    return f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"
