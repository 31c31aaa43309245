"""The folder of a run: named, recognised as that of the run which goes on, and locked."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import bench
from bench.cli.parser import option_name, run_options
from bench.results.columns import COLUMNS
from bench.results.run_json import planned, read_run, request_of, text_of
from bench.run.prepare import PreparedRun
from bench.spec.errors import UsageError
from bench.spec.request import Request

LOCK = "run.lock"
# Most characters of suites in the name of a folder, whose name takes 255 bytes at most.
LONGEST = 80
# Parts of a request that are no option's own field, by what sets them.
WITHOUT_OPTION = {
    "largest_batch": "--batch-sizes max",
    "protocol": "--rigorous, --target-ci or --time-budget",
    "script": "the script's command",
}


def choose_folder(request: Request) -> tuple[Request, Path | None]:
    """Return the folder of a run, and of a bare ``--resume`` the request of the run that goes on.

    Returns:
        The request, and its folder; None if the folder is to be named after the device.

    Raises:
        UsageError: the folder exists already, or there is no run to continue.
    """
    folder, out = request.resume, request.out
    if folder is not None:
        return request if request.suites else _stored_request(request, folder), folder
    if out is None or not out.exists():
        return request, out
    if not out.is_dir():
        raise UsageError(f"--out '{out}' is a file. Name a folder.")
    # A run that was killed before it wrote anything leaves its lock.
    if {path.name for path in out.iterdir()} - {LOCK}:
        advice = "Use another --out"
        if (out / "run.json").exists():
            advice = f"Use --resume {out} to go on with it, or another --out"
        raise UsageError(f"'{out}' exists already. {advice}.")
    return request, out


def _stored_request(given: Request, folder: Path) -> Request:
    """Return the request of the run in a folder, with those given options that go with it."""
    run = read_run(folder)
    if not run.get("request", {}).get("suites"):
        raise UsageError(
            f"'{folder / 'run.json'}' lacks request.suites. Restore it, or start a new run."
        )
    changes: dict[str, Any] = {"out": None, "within_s": None}
    for name, option in run_options().items():
        if option.with_resume and getattr(given, name) is not None:
            changes[name] = getattr(given, name)
    return replace(request_of(run), **changes)


def describe(prepared: PreparedRun) -> dict[str, Any]:
    """Return what run.json holds of a run from its beginning."""
    sources = []
    for data in prepared.data:
        about = {"source": str(data.source), "left_out": len(data.left_out)}
        sources.append(asdict(data) | about)
    return {
        "version": bench.__version__,
        "request": asdict(prepared.request) | {"suites": prepared.suites},
        "environment": prepared.environment,
        "data": sources,
        "planned": [planned(trial) for trial in prepared.plan.trials],
        "warnings": [],
        "started": None,
        "finished": None,
    }


def earlier_run(folder: Path) -> dict[str, Any]:
    """Return run.json of the run that goes on in a folder; empty of a new run.

    Raises:
        UsageError: it is not a run's, or damaged.
    """
    if not (folder / "run.json").exists():
        # Rows without a question are of a run that lost its run.json.
        for name in COLUMNS:
            if (folder / name).exists():
                raise UsageError(
                    f"There is '{folder / name}', but no run.json that says what was asked: "
                    "restore it, or use another folder."
                )
        return {}
    return read_run(folder)


def require_same_question(folder: Path, prepared: PreparedRun) -> None:
    """Refuse a run that would not answer the question of the one that goes on in its folder.

    Raises:
        UsageError: its rows and those to come would be of different questions, or nobody can tell.
    """
    earlier = earlier_run(folder)
    if not earlier:
        return
    # As it would be read back: what is compared with it has no tuples or paths.
    now = json.loads(text_of(describe(prepared)))
    before = fixed(earlier)
    differing = []
    for name, value in fixed(now).items():
        was = before.get(name, value)
        if was != value:
            values = ""
            if isinstance(value, str):  # others, such as the list of suites, are too long to show
                values = f" ({was}; here {value})"
            differing.append(name + values)
    # More may be added, because each is a training of its own. Another suite has its own seeds.
    if "--suite" not in differing and not seeds(earlier) <= seeds(now):
        differing.append("--seeds")
    if differing:
        raise UsageError(
            f"The run in '{folder}' differs in {', '.join(differing)}. Repeat its own options, or "
            f"only --resume {folder}, on the same machine, data and code; or start a new run, "
            "without --resume."
        )


def fixed(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must stay the same for rows to be of one run, by the words of error messages.

    Args:
        run: its run.json.
    """
    words = dict(WITHOUT_OPTION)
    for name, option in run_options().items():
        if not option.changes_nothing and name != "seeds":
            words[name] = option_name(name, option)
    facts: dict[str, Any] = {}
    for name, value in run.get("request", {}).items():
        if name == "suites":
            facts[words[name]] = [suite | {"digest": ""} for suite in value]
            for suite in value:
                facts[f"the code of suite {suite['name']}"] = suite["digest"]
        elif name in words:
            facts[words[name]] = value
    environment = run.get("environment", {})
    facts["torch"] = environment.get("torch")
    for device in environment.get("devices", ()):
        fact = device["name"]
        # A CPU's times depend on how many threads compute.
        if device.get("threads"):
            fact += f" on {device['threads']} threads"
        facts[f"the device {device['placement']}"] = fact
    for data in run.get("data", ()):
        facts[f"the content of {data['source']}"] = data.get("fingerprint")
    return facts


def seeds(run: Mapping[str, Any]) -> set[int]:
    """Return the seeds of a run, asked for or planned, from its run.json."""
    asked = {*(run.get("request", {}).get("seeds") or ())}
    for trial in run.get("planned", ()):
        asked.add(trial["seed"])
    return asked


def new_folder(prepared: PreparedRun) -> Path:
    """Make a folder that is named after a run's suites, its devices and the time."""
    suites = dict.fromkeys(suite.name for suite in prepared.suites)
    devices: dict[str, None] = {}
    for device in prepared.environment.devices:
        # The name of a CPU is long, and tells few machines apart.
        devices[device.name if device.is_gpu else "cpu"] = None
    what = "+".join(suites)[:LONGEST]
    where = "+".join(devices).lower()
    when = f"{datetime.now():%Y%m%d-%H%M%S}"
    # Without characters that a shell or a file system takes otherwise.
    name = re.sub(r"[^\w.+=-]+", "-", f"{what}-{where}-{when}")
    folder = Path("results") / name
    if folder.exists():  # of another run, begun in the same second
        folder = folder.with_name(f"{name}-{os.getpid()}")
    folder.mkdir(parents=True)
    return folder


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run's folder, which must exist.

    The lock names its owner's process, host and start. An owner that has ended on this host does
    not hold it any more; whether one on another host has ended cannot be known.

    Raises:
        UsageError: another process holds it.
        OSError: the folder cannot be written.
    """
    from filelock import SoftFileLock, Timeout  # not needed for --help

    path = folder / LOCK
    # For so long an owner that has just ended still counts as one.
    lock = SoftFileLock(path, timeout=0.2, poll_interval=0.05)
    try:
        lock.acquire()
    except Timeout as error:
        raise UsageError(
            f"The run in '{folder}' is in use: '{path}' names the process and its host. Wait until "
            "that has ended; if it has, and left the file behind, remove it."
        ) from error
    try:
        yield
    finally:
        lock.release()
