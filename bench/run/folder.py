"""The folder of a run: made, locked, and recognised as that of the run which goes on."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.cli.parser import option_name, run_options
from bench.results.columns import COLUMNS
from bench.results.run_json import read_run, request_of
from bench.run.prepare import PreparedRun
from bench.spec.errors import UsageError
from bench.spec.request import Request

LOCK = "run.lock"
LONGEST = 80
"""Characters of suites in the name of a folder; with more, the first suite stands for all."""
WAIT_S, POLL_S = 0.2, 0.05
"""How long an owner that has just ended may take to be recognised as such, and how often that is tried."""


def open_folder(request: Request) -> tuple[Request, Path | None]:
    """Return the folder of a run, and for a bare ``--resume`` the request of the run that it continues.

    Returns:
        The request, and its folder; None if the folder is to be named after the device.

    Raises:
        UsageError: the folder exists already, or there is no run to continue.
    """
    if (folder := request.resume) is not None:
        if not request.suites:
            free = [name for name, option in run_options().items() if option.with_resume]
            given: dict[str, Any] = {name: getattr(request, name) for name in free}
            known = {name: value for name, value in given.items() if value is not None}
            request = replace(_recorded(folder), **{"out": None, "within_s": None, **known})
        return request, folder
    if request.out is not None and request.out.exists() and not _is_empty(request.out):
        is_run = (request.out / "run.json").exists()
        way = f"Use --resume {request.out} to go on with it, or another --out" if is_run else "Use another --out"
        raise UsageError(f"'{request.out}' exists already. {way}.")
    return request, request.out


def _recorded(folder: Path) -> Request:
    """Return the request of the run in a folder.

    Raises:
        UsageError: there is no run, or a suite's file of the user's own is not there any more.
    """
    request = request_of(_read_run(folder))
    for word in () if request.script else request.suites:
        if word.endswith(".py") and not Path(word).is_file():
            raise UsageError(
                f"The run in '{folder}' was started with the suite file '{word}', which is not there. Restore it, or "
                "start a new run."
            )
    return request


def check(prepared: PreparedRun, folder: Path | None) -> None:
    """Refuse what cannot be run, before the plan is shown and anything is written.

    Args:
        prepared: the run.
        folder: its folder; None if it is to be named after the device.

    Raises:
        UsageError: the folder is another run's, or no run's, or another process writes to it; or it cannot be written.
    """
    exists = folder is not None and folder.is_dir()
    if folder is not None and exists:
        earlier_start(folder, prepared)
    if exists or not prepared.request.dry_run:
        try:
            _require_writable(folder or Path("results"))
        except OSError as error:
            place, way = folder or "results", "copy it elsewhere" if exists else "name another folder with --out"
            raise UsageError(
                f"Nothing can be written to '{place}': {error.strerror or error}. Make room there, or {way}."
            ) from error
    if folder is not None and exists:
        with locked(folder):
            pass


def new_folder(prepared: PreparedRun) -> Path:
    """Name a run after its suites, its devices and the time."""
    suites = "+".join(dict.fromkeys(ref.name for ref in prepared.suites))
    devices = dict.fromkeys(device.name if device.is_gpu else "cpu" for device in prepared.environment.devices)
    where = re.sub(r"[^a-z0-9+]+", "-", "+".join(devices).lower()).strip("-")
    if len(suites) > LONGEST:
        suites = f"{prepared.suites[0].name}+{len(prepared.suites) - 1}-more"
    suites = re.sub(r"[^\w.+=-]", "_", suites)
    name = Path("results") / f"{suites}-{where}-{datetime.now():%Y%m%d-%H%M%S}"
    try:
        name.mkdir(parents=True)
    except FileExistsError:
        return name.with_name(f"{name.name}-{os.getpid()}")
    return name


def _is_empty(folder: Path) -> bool:
    """Say whether a folder holds nothing but the lock of a run that was killed before it wrote anything."""
    return folder.is_dir() and all(path.name == LOCK for path in folder.iterdir())


def _require_writable(folder: Path) -> None:
    """Raise an OSError if no file can be written into a folder, or into what it would be made in."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    with tempfile.TemporaryFile(dir=there) as file:
        file.write(bytes(4096))
        file.flush()


def describe_request(prepared: PreparedRun) -> dict[str, Any]:
    """Return the request for run.json: the words, and what they mean."""
    return {**asdict(prepared.request), "suites": [asdict(ref) for ref in prepared.suites]}


def earlier_start(folder: Path, prepared: PreparedRun) -> str | None:
    """Return when the run to continue was started; None if the folder has none.

    Raises:
        UsageError: it was made on another machine, with another request or on other data; seeds may be added, because
            each is a training of its own. Or its CSVs are not a run's, or nobody can tell which.
    """
    there = [name for name in COLUMNS if (folder / name).exists()]
    if there:
        from bench.results import csv_file

        for name in there:  # refuses what its report would refuse
            csv_file.read(folder / name)
    if not (folder / "run.json").exists():
        if there:
            raise UsageError(
                f"There is '{folder / there[0]}', but no run.json that says what was asked: restore it, or use another "
                "folder."
            )
        return None
    run = _read_run(folder)
    now = json.loads(json.dumps(describe_request(prepared), default=str))
    seeds = {*(run["request"].get("seeds") or ()), *(trial["seed"] for trial in run.get("planned", ()))}
    kept_seeds = seeds <= {*(now["seeds"] or ()), *(trial.seed for trial in prepared.plan.trials)}
    free = {"argv", *(name for name, option in run_options().items() if option.changes_nothing)}
    if kept_seeds:
        free.add("seeds")
    changed = [name for name, value in now.items() if run["request"].get(name) != value and name not in free]
    if changed == ["suites"] and _without_digests(run["request"]) == _without_digests(now):  # or the script's
        raise UsageError(
            f"The run in '{folder}' was made before {now['suites'][0]['name']} was changed. Restore it, or start a new "
            "run with --out."
        )
    if changed:
        raise UsageError(
            f"The run in '{folder}' was started with other {_options(changed)}. Repeat its own "
            f"options, or only --resume {folder}, or start a new run with --out."
        )
    prints = {data.get("source"): data.get("fingerprint") for data in run.get("data", ())}
    for data in prepared.data:
        if prints.get(source := str(data.source), data.fingerprint) != data.fingerprint:
            raise UsageError(
                f"The run in '{folder}' was made with another content of {source}. Restore it, or start a new run."
            )
    before = {device["placement"]: device["name"] for device in run["environment"]["devices"]}
    for device in prepared.environment.devices:
        name = before.get(device.placement, device.name)
        if name != device.name:
            raise UsageError(f"The run in '{folder}' was made on {name}; this is {device.name}. Start a new run.")
    was, here = _circumstances(run["environment"]), _circumstances(asdict(prepared.environment))
    if was != here:
        raise UsageError(f"The run in '{folder}' was made with {was}; this is {here}. Start a new run.")
    started: str = run["started"]
    return started


def _without_digests(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the suites of a request whatever is in their files."""
    return [{**suite, "digest": ""} for suite in request["suites"]]


def _options(changed: Sequence[str]) -> str:
    """Name the options, as they are typed, of changed fields."""
    options = run_options()
    groups = {"largest_batch": "--batch-sizes", "protocol": "--quick, --rigorous, --target-ci or --time-budget"}
    return ", ".join(dict.fromkeys(groups.get(name) or option_name(name, options[name]) for name in changed))


def _circumstances(environment: dict[str, Any]) -> str:
    """Name what must be the same for rows of one run to be compared."""
    threads = [device["threads"] for device in environment["devices"] if device.get("threads")]
    return f"torch {environment['torch']}" + (f" on {threads[0]} threads" if threads else "")


def _read_run(folder: Path) -> dict[str, Any]:
    """Read run.json of a run to continue."""
    run = read_run(folder)
    request, environment = run.get("request", {}), run.get("environment", {})
    needed = {
        "request.suites": request.get("suites") or None,
        "environment.torch": environment.get("torch"),
        "environment.devices": environment.get("devices"),
        "started": run.get("started"),
    }
    if lacking := [name for name, value in needed.items() if value is None]:
        raise UsageError(f"'{folder / 'run.json'}' lacks {lacking[0]}. Restore it, or start a new run.")
    return run


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run's folder, which must exist.

    The lock names its owner's process, host and start. An owner that has ended on this host does not hold it any more;
    whether one on another host has ended cannot be known.

    Raises:
        UsageError: another process holds it; the message says which, and what to do.
        OSError: the folder cannot be written.
    """
    from filelock import SoftFileLock, Timeout  # not needed for --help

    path = folder / LOCK
    lock = SoftFileLock(path, timeout=WAIT_S, poll_interval=POLL_S)
    try:
        lock.acquire()
    except Timeout as error:
        raise UsageError(f"The run in '{folder}' {_holder(path)}") from error
    try:
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    """Say who holds a lock, by its owner's process and host if they can be read, and what to do."""
    words: list[str] = []
    with suppress(OSError, UnicodeDecodeError):  # it ended just now, or is no text
        words = path.read_text().split()
    owner = f" by process {words[0]} on {words[1].partition('?')[0]}" if len(words) > 1 else ""
    return f"is in use{owner}. Wait until that has ended; if it has, and left '{path}' behind, remove that file."
