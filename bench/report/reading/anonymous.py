"""Runs without what tells who measured them, and on which machine: for a report that is shared.

Left out are host names, user names, paths, UUIDs of boards, and names and numbers of processes. What was measured
stays: names of suites and devices, versions, settings and figures. Texts of others, such as an error of a suite, are
searched for all of these, and for what run.json knows to be a path or a host.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from bench.report.reading.load import Run, Runs

PATHS = ("data_dir", "out", "resume")
"""Keys of a request that hold paths; on the command line, options."""
WITH_PATH = ("--data", "--data-dir", "--out", "--resume", "--weights", "--on", "--suite")
"""Options whose word may hold a path or an address."""
WITH_COLON = ("folder:", "text:")
"""How sources of data with a path begin."""
IDENTIFYING = {"uuid", "uuids", "directory", "fingerprint"}
"""Keys of run.json that identify a board or a folder."""
PATTERNS = (
    (re.compile(r"is in use by .*", re.DOTALL), "is in use by others."),
    (re.compile(r"^.* is a copy of it", re.DOTALL), "Another folder is a copy of it"),
    (re.compile(r'File "[^"\n]*"'), 'File "[path]"'),
    (re.compile(r"""(?P<quote>['"])(?:~|\.{0,2}/|[A-Za-z]:\\)[^'"\n]*(?P=quote)"""), r"\g<quote>[path]\g<quote>"),
    (re.compile(r"\b(folder|text):[^\s,;)]+"), r"\1:[path]"),
    (re.compile(r"\w+://[^\s,;)'\"]+"), "[address]"),
    (re.compile(r"(?<![\w.\]/])(?:~[\w.-]*|\.{0,2})/[^\s,:;()<>|'\"\]]+"), "[path]"),
    (re.compile(r"(?<![\w.])[A-Za-z]:\\[^\s,;()<>|'\"]+"), "[path]"),
    (re.compile(r"(?<![\w./])[\w.+-]+(?:/[\w.+-]+)+\.[A-Za-z]\w{0,4}\b"), "[path]"),
    (re.compile(r"\b(?:GPU-|MIG-)?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "[id]"),
    (re.compile(r"\b[\w.+-]+@[\w.-]+\b"), "[user]"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "[address]"),
    (re.compile(r"\bpid \d+"), "pid [id]"),
)
"""Patterns of identifying text, each with its replacement."""
COMMON = {"cpu", "gpu", "cuda", "localhost", "root", "user", "run"}
"""Names of hosts and users that identify nobody, and are words of other texts."""
FREE = ("trial", "cell", "parameters", "parameters_json", "detail", "discarded", "suite")
"""Columns whose words may hold anything."""
KEPT = {"placement", "kind", "phase", "phases", "status", "arms", "precisions"}
"""Keys of run.json whose words are ampmeter's own."""
FRAMES = ("trials", "epochs", "blocks", "ablations", "ablation_blocks", "numerics", "explained", "telemetry")
HOME = re.compile(r"/(?:home|Users)/([\w.-]+)")
Scrub = Callable[[str], str]


def anonymous(runs: Runs) -> Runs:
    """Return runs without what identifies people or machines; they are called by numbers."""
    labels = {run.label: f"no. {number}" for number, run in enumerate(runs.runs, 1)}
    named = dict.fromkeys(name for run in runs.runs for name in _hosts(run))
    hosts = {name: f"host {number}" for number, name in enumerate(named, 1)}
    data = [*runs.trials["data"].astype(str).unique(), *(source for run in runs.runs for source in run.fingerprints)]
    with_path = dict.fromkeys(source for kind in WITH_COLON for source in data if source.startswith(kind))
    sources = {source: f"{source.partition(':')[0]}:{number}" for number, source in enumerate(with_path, 1)}
    scrub = _scrubber(runs, labels, hosts, sources)

    def of(frame: pd.DataFrame) -> pd.DataFrame:
        change: dict[str, Scrub] = dict.fromkeys(FREE, scrub)
        change |= {"run": lambda word: labels.get(word, word), "data": lambda word: sources.get(word, word)}
        return frame.assign(**{name: _mapped(frame[name], change[name]) for name in frame.columns if name in change})

    frames: dict[str, Any] = {name: of(getattr(runs, name)) for name in FRAMES}
    anonymous_runs = [_anonymous_run(run, labels[run.label], hosts, sources, scrub) for run in runs.runs]
    return replace(runs, runs=anonymous_runs, remarks=[scrub(remark) for remark in runs.remarks], **frames)


def _mapped(values: pd.Series, change: Scrub) -> pd.Series:
    """Return words changed, each different one once; a category stays one."""
    categorical = isinstance(values.dtype, pd.CategoricalDtype)
    known = values.cat.categories if categorical else values.unique()
    changed = values.astype(object).map({word: change(word) if isinstance(word, str) else word for word in known})
    return changed.astype("category") if categorical else changed


def _hosts(run: Run) -> Iterator[str]:
    """Yield the names of a run's hosts; of several machines one text has them all."""
    machine = run.environment
    for text in (machine.get("host"), *(node.get("host") for node in machine.get("nodes") or ())):
        yield from (name for name in re.split(r",\s*", text or "") if name)


def _scrubber(runs: Runs, labels: Mapping[str, str], hosts: Mapping[str, str], sources: Mapping[str, str]) -> Scrub:
    """Return a function that leaves out of a text what identifies."""
    texts = [text for run in runs.runs for text in _texts(run.info)]
    users = {name for text in texts for name in HOME.findall(text)}
    paths = {text for run in runs.runs for text in _paths(run) if "/" in text}
    settings = pd.concat([runs.trials, runs.ablations])["parameters_json"].unique()
    paths |= {text for cell in settings if cell for text in _texts(json.loads(cell)) if "/" in text}
    words = {**dict.fromkeys(paths, "[path]"), **dict.fromkeys(users, "[user]"), **hosts}
    words = {word: instead for word, instead in words.items() if len(word) > 2 and word.lower() not in COMMON}
    words |= {f"{run} {label}": f"{run} {number}" for label, number in labels.items() for run in ("run", "Run")}
    words |= {label: number for label, number in labels.items() if re.search(r"[\d_/-]", label)}
    known, named = _any_of(words, r"(?<!\w)(?:{})(?!\w)"), _any_of(sources, "{}")

    def scrub(text: str) -> str:
        text = named.sub(lambda match: sources[match[0]].replace(":", " "), text)
        for pattern, instead in PATTERNS[:2]:
            text = pattern.sub(instead, text)
        text = known.sub(lambda match: words[match[0]], text)
        for pattern, instead in PATTERNS[2:]:
            text = pattern.sub(instead, text)
        return text

    return scrub


def _any_of(words: Iterable[str], around: str) -> re.Pattern[str]:
    """Return the pattern of any of some words, the longest that fits; of none, a pattern that never matches."""
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile(around.format("|".join(map(re.escape, longest_first))) if longest_first else r"(?!)")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _paths(run: Run) -> Iterator[str]:
    """Yield what run.json knows to be paths."""
    request = run.part("request")
    yield from (str(request[name]) for name in PATHS if request.get(name))
    yield from (str(suite["file"]) for suite in request.get("suites") or () if suite.get("file"))
    yield str(run.folder)


def _anonymous_run(run: Run, label: str, hosts: Mapping[str, str], sources: Mapping[str, str], scrub: Scrub) -> Run:
    def clean(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {scrub(name): clean(part, name) for name, part in value.items() if name not in IDENTIFYING}
        if isinstance(value, list):
            return [clean(part, key) for part in value]
        if not isinstance(value, str) or key in KEPT:
            return value
        if key == "host":
            return ", ".join(dict.fromkeys(hosts.get(name, "host") for name in re.split(r",\s*", value)))
        return sources.get(value) or scrub(value)

    info = clean(run.info)
    info |= {"run": label}
    if isinstance(request := info.get("request"), dict):
        info["request"] = request | {name: None for name in PATHS if name in request}
        words = list(run.part("request").get("argv") or [])
        info["request"]["argv"] = list(_argv(words, sources, scrub))
    return replace(run, label=label, info=info, folder=Path(label), remarks=tuple(map(scrub, run.remarks)))


def _argv(words: Iterable[str], sources: Mapping[str, str], scrub: Scrub) -> Iterator[str]:
    """Yield the words of a command line; those that are paths, or hold one, are left open."""
    option = ""
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("--") and equals and name in WITH_PATH:
            yield f"{name}={_open(name, value, sources, scrub)}"
        else:
            yield _open(option, word, sources, scrub) if option in WITH_PATH else scrub(word)
        option = word


def _open(option: str, value: str, sources: Mapping[str, str], scrub: Scrub) -> str:
    if option in ("--out", "--resume", "--data-dir"):
        return "DIR"
    if option == "--data" and ":" in value:
        return sources.get(value, f"{value.partition(':')[0]}:PATH")
    if option == "--suite":
        return ",".join("FILE.py" if "/" in name or name.endswith(".py") else name for name in value.split(","))
    return scrub(value) if option != "--weights" or value in ("none", "imagenet") else "FILE"
