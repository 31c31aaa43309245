"""A run from its folder to its report."""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import bench
from bench import report as reporter
from bench.cli.display import open_display, say, show_remaining
from bench.cli.interruption import Interrupted, Interruption, invocation
from bench.cli.parser import RIGOROUS, TRY, parse_ladder, parse_run
from bench.launch.launcher import Launcher
from bench.measure.sampler import Gpus, Sampler
from bench.report.reading import folders
from bench.results.columns import COLUMNS, has_rows, read_header
from bench.results.records import MEASURED, Environment
from bench.results.run_json import planned, read_run
from bench.results.store import FAILURES, Store, StoreLostError, answers, edited, reason_of
from bench.run.execute import Execution, remaining
from bench.run.lock import LOCK, locked
from bench.run.prepare import PreparedRun
from bench.spec.errors import UsageError
from bench.spec.trial import Request

SAMPLE_PERIOD_S = 0.2
LARGE = ("blocks.csv", "telemetry.csv")
"""The CSVs that may have millions of rows."""


def open_folder(request: Request) -> tuple[Request, Path | None]:
    """Return the folder of a run, and for a bare ``--resume`` the request of the run that it continues.

    Returns:
        The request, and its folder; None if the folder is to be named after the device.

    Raises:
        UsageError: the folder exists already, or there is no run to continue.
    """
    if (folder := request.resume) is not None:
        if not request.suites:
            words = list[str]()
            if request.seeds:
                words += ["--seeds", ",".join(map(str, request.seeds))]
            if request.trial_timeout_s is not None:
                words += ["--trial-timeout", f"{request.trial_timeout_s}s"]
            recorded = _recorded(folder, words)
            request = replace(recorded, resume=folder, out=None, dry_run=request.dry_run, tries=request.tries)
        return request, folder
    if request.out is not None and request.out.exists() and not _is_empty(request.out):
        found = (request.out / "run.json").exists()
        way = f"Use --resume {request.out} to go on with it, or another --out" if found else "Use another --out"
        raise UsageError(f"'{request.out}' exists already. {way}.")
    return request, request.out


def _recorded(folder: Path, more: Sequence[str]) -> Request:
    """Return the request of the run in a folder, with more words; its suites' files are those that it was started with.

    Raises:
        UsageError: there is no run, or what it was started with cannot be repeated here.
    """
    run = _read_run(folder)
    words = run["request"]["argv"]
    try:
        request = parse_run([*words, *more], recorded=True)
        if not request.suites:
            raise UsageError("No suite is named.")
    except UsageError as error:
        added = f" with {shlex.join(more)}" if more else ""
        raise UsageError(
            f"{str(error).removesuffix('.')}. '{folder / 'run.json'}' says that the run was started with the options "
            f"{shlex.join(words)}, which therefore cannot be repeated in '{Path.cwd()}'{added}."
        ) from error
    files = [Path(ref["file"]) for ref in run["request"].get("suites") or () if ref.get("file")]
    suites = []
    for word in request.suites:
        known = next((file for file in files if word.endswith(".py") and file.name == Path(word).name), Path(word))
        if word.endswith(".py") and not (known.is_file() or Path(word).is_file()):
            raise UsageError(
                f"The run in '{folder}' was started with the suite file '{known.absolute()}', which is not there. "
                "Restore it, or start a new run."
            )
        suites.append(str(known) if known.is_file() else word)
    return replace(request, suites=tuple(suites))


def tell_what_remains(prepared: PreparedRun, folder: Path | None) -> None:
    """Say how much of the plan of a run that goes on is finished; nothing of a new run.

    Raises:
        UsageError: its trials.csv cannot be read.
    """
    if folder is not None and (folder / "run.json").exists():
        known = answers(folder)
        left = remaining(prepared.plan, known)
        failed = [trial for trial in left.trials if set(known.attempts.get(trial.id, {}).values()) & set(FAILURES)]
        show_remaining(prepared.plan, left, len(failed))


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
        _earlier_start(folder, prepared)
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
    if prepared.request.dry_run:
        return
    try:
        _require_writable(Path("reports"))
    except OSError as error:
        say(f"Warning: no report can be written to 'reports' here: {error.strerror or error}. Results can be.")


def execute(prepared: PreparedRun, folder: Path | None, launcher: Launcher) -> tuple[Path, bool]:
    """Run the plan; return the run's folder, and whether no trial failed or hung.

    Raises:
        UsageError: the folder cannot be continued, or could not be written to the end.
    """
    folder = _new_folder(prepared) if folder is None else folder
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        try:
            return folder, _execute(prepared, folder, launcher)
        except StoreLostError as error:
            raise UsageError(str(error)) from error


def _execute(prepared: PreparedRun, folder: Path, launcher: Launcher) -> bool:
    before = _earlier_start(folder, prepared)
    environment = prepared.environment
    gpus = () if prepared.request.on is not None else sampled_gpus(environment)  # a cluster's are on other machines
    run = {
        "version": bench.__version__,
        "request": _describe_request(prepared),
        "environment": environment,
        "data": [{**asdict(data), "source": str(data.source)} for data in prepared.data],
        "planned": [planned(trial) for trial in prepared.plan.trials],
        "warnings": list(prepared.warnings),
        "edited": edited(folder, read_run(folder)) if before else [],
        "started": before or _now(),
        "finished": None,
    }
    display = open_display()
    try:
        with ExitStack() as stack:
            store = stack.enter_context(Store(folder))
            if store.dropped:
                rows = ", ".join(f"{count} of {name}" for name, count in store.dropped.items())
                display.note(f"Rows of trials that did not end were dropped: {rows}.")
            store.write_run(run)  # first, so that whatever happens --resume finds a run
            sampler = stack.enter_context(Sampler(gpus, SAMPLE_PERIOD_S))
            launcher.on_start = sampler.own
            launcher.workspace = folder.resolve()
            devices = {device.placement: device for device in environment.devices}
            execution = Execution(store=store, devices=devices, launcher=launcher, sampler=sampler, display=display)
            try:
                if prepared.replan is None:
                    fine = execution.run(prepared.plan)
                else:  # the searches for the largest batches first, then the whole plan at them
                    found = execution.run(prepared.plan.only("fit"))
                    plan = prepared.replan(execution.largest(prepared.plan))
                    run["planned"] = [planned(trial) for trial in plan.trials]
                    store.write_run(run)
                    display.note(f"The largest batches are known: {len(plan.trials)} trials at them and at others.")
                    fine = execution.run(plan) and found
                store.add(sampler.stop())
                lost = [f"GPU {placement} was lost to NVML: {reason}" for placement, reason in sampler.lost.items()]
                store.write_run({**run, "warnings": [*prepared.warnings, *launcher.notes, *lost], "finished": _now()})
            except KeyboardInterrupt as stop:
                display.close()
                tell_interrupted(folder, tries=prepared.request.tries)
                raise Interrupted(folder if answers(folder).attempts else None) from stop
    finally:
        display.close()
    return fine


def tell_interrupted(folder: Path | None, *, tries: bool = False) -> None:
    """Say that a run was stopped, what of it is finished, and how to go on.

    Args:
        folder: the run's; None if it has none yet.
        tries: whether ladders were to follow it.
    """
    finished, total = _progress(folder) if folder is not None else (0, 0)
    if finished:
        tell(f"Stopped: {finished} of {total} planned trials are finished, in {folder}.")
    else:
        tell("Stopped before a trial was finished.")
    if folder is None or not (folder / "run.json").exists():
        tell("Start it again with the same command.")
    elif tries:
        tell(f"Go on with {_again_with_ladders(folder)}")
    else:
        tell(f"Go on with {invocation()} --resume {shlex.quote(str(folder))}")


def tell_ladders_interrupted(folder: Path) -> None:
    """Say how to go on with the ladders that follow a run, all of them."""
    tell(f"Go on with all that was to be tried: {_again_with_ladders(folder)}")


def _again_with_ladders(folder: Path) -> str:
    return f"{invocation()} explain --resume {shlex.quote(str(folder))} {TRY}"


def _progress(folder: Path) -> tuple[int, int]:
    """Return how many trials of a run's plan are finished, and how many it has; zeros if nobody can tell.

    What is left out because it does not fit, or is not supported, is finished too, as it is where the run goes on.
    """
    from bench.report.reading.completeness import finished  # with pandas, which a new run does without until its report

    try:
        trials = list(read_run(folder).get("planned") or ())
        return finished(trials, folder / "trials.csv"), len(trials)
    except UsageError:
        return 0, 0


def report_interrupted(folder: Path | None, signals: Interruption) -> None:
    """Write the report of what a run that was stopped has finished, unless the user does not want to wait for it."""
    if folder is None:
        return
    with skippable(folder), suppress(OSError):  # nobody reads it any more
        signals.accept()
        if signals.again:
            raise KeyboardInterrupt
        tell("Writing a partial report of what is finished; Ctrl-C skips it.")
        report([folder], report_folder([folder]))


@contextmanager
def skippable(folder: Path) -> Iterator[None]:
    """Let Ctrl-C end the writing of a run's report, and say how to write it later.

    Raises:
        Interrupted: it did.
    """
    try:
        yield
    except Interrupted:  # it has been said where the report is
        raise
    except KeyboardInterrupt as stop:
        where = shlex.quote(str(folder))
        tell(f"No report was written. What was measured is in {folder}: {invocation()} report {where} writes one.")
        raise Interrupted from stop


def tell(text: str) -> None:
    """Print a line; to stderr if whoever reads the rest is gone, as after Ctrl-C the reader of a pipe is."""
    try:
        say(text)
    except OSError:
        os.dup2(2, 1)
        with suppress(OSError):
            say(text)


def sampled_gpus(environment: Environment) -> Gpus:
    """Return the GPUs whose telemetry is read, each once; those that train together are read one by one."""
    names = {uuid: name for device in environment.devices for uuid, name in device.gpus.items()}
    return tuple((name, uuid) for uuid, name in names.items())


def _is_empty(folder: Path) -> bool:
    """Say whether a folder holds nothing but what a run leaves that is killed before it has written its run.json."""
    return folder.is_dir() and all(
        path.name == LOCK or path.name.startswith(".run.part") or (path.name in COLUMNS and not has_rows(path))
        for path in folder.iterdir()
    )


def _describe_request(prepared: PreparedRun) -> dict[str, Any]:
    """Return the request for run.json: the words, and what they mean."""
    suites = [asdict(ref) for ref in prepared.suites]
    for suite in suites:
        if suite["batch_size"] is None:
            del suite["batch_size"]  # as in runs of earlier versions, which go on
    return {**asdict(prepared.request), "suites": suites}


def report(
    runs: list[Path],
    out: Path,
    *,
    published: bool = False,
    layers: bool = False,
    figures: Literal["overview", "all", "none"] = "overview",
    anonymise: bool = False,
    tried: bool = False,
) -> None:
    """Write the report of some runs; print its ablations, its answers and where it is.

    With ``tried``, what the reasons point at is tried next, so it is not said how.

    Raises:
        UsageError: it cannot be written.
        Interrupted: it was while it was printed; it has been said where the report is.
    """
    runs = list(dict.fromkeys(run.resolve() for run in runs))
    try:
        contents = reporter.report(runs, out, published=published, layers=layers, figures=figures, anonymise=anonymise)
    except OSError as error:
        place = Path(error.filename or out)
        if not (place.is_relative_to(out) or out.is_relative_to(place)):
            raise
        raise UsageError(
            f"The report in '{out}' cannot be written: {error.strerror or error}. Nothing that was measured is lost: "
            f"write it elsewhere with report {shlex.join(map(str, runs))} --out FOLDER."
        ) from error
    written = f"Report: {out / 'report.md'} and {out / 'report.html'}"
    try:
        say(reporter.terminal(contents, out, tried=tried))
    except KeyboardInterrupt as stop:
        tell(written)
        raise Interrupted from stop
    say(written)


def ladders_to_try(request: Request, folder: Path) -> Iterator[Request]:
    """Yield a ladder for each precision of a run that was explained, to the techniques that the reasons point at.

    One that was started before goes on.
    """
    techniques: dict[str, list[str]] = {}
    for explanation in reporter.explain([folder]):
        techniques.setdefault(explanation.precision, []).extend(explanation.techniques)
    for precision, names in techniques.items():
        if not names:
            say(f"Nothing to try for {precision}: no reason points at a technique.")
            continue
        out = folder.with_name(f"{folder.name}-try-{precision}")
        try:
            ladder = parse_ladder(request, precision, names, out)
        except UsageError as error:
            say(f"{', '.join(dict.fromkeys(names))} cannot be tried for {precision}: {error}")
            continue
        yield replace(ladder, out=None, resume=out) if (out / "run.json").exists() else ladder


def next_step(folder: Path) -> str:
    """Say how to go on after a run."""
    from bench.report.reading.completeness import last_attempts
    from bench.spec.metrics import ACCURACY

    where = shlex.quote(str(folder))
    trials = last_attempts(folder / "trials.csv")
    failed = trials["status"].isin(FAILURES)
    if len(trials) > 1 and failed.all() and trials["detail"].map(reason_of).nunique() == 1:
        return f"all trials failed for the reason given above. Mend that, and --resume {where} tries them again."
    if failed.any():
        return f"the report's notes say what failed or hung; --resume {where} tries it again."
    measured = trials[trials["status"].isin(MEASURED)]
    if measured.empty:
        smaller = ", and smaller --batch-sizes in a new run may fit" if (trials["status"] == "oom").any() else ""
        return f"the report's notes say why nothing could be measured{smaller}."
    request = read_run(folder).get("request", {})
    most = request.get("protocol", {}).get("most_replicates", 0)
    compared = measured[["speedup", "inference_speedup"]].notna().any(axis=None)
    trained = measured[measured["phase"] == "train"]
    seeds = list(dict.fromkeys(map(int, trained["seed"])))
    first = ""
    if compared and most < RIGOROUS.most_replicates:
        first = "--rigorous narrows the intervals, "
    elif not compared and trained["precision"].nunique() > 1 and len(seeds) < ACCURACY.fewest:
        more = [seed for seed in range(2 * ACCURACY.fewest) if seed not in seeds]
        wanted = ",".join(map(str, (seeds + more)[: ACCURACY.fewest]))
        first = f"--resume {where} --seeds {wanted} trains as often as a verdict on accuracy needs, "
    return (
        f"{first}`run_bench.py report {where} OTHER` sets runs side by side, and `run_bench.py list` names suites and "
        "precisions."
    )


def report_folder(runs: list[Path]) -> Path:
    """Return where the report of some runs belongs: reports/, under the runs' names."""
    return folders.report_folder(runs, Path("reports"))


def _new_folder(prepared: PreparedRun) -> Path:
    """Name a run after its suites, its devices and the time."""
    suites = "+".join(ref.name for ref in prepared.suites)
    devices = dict.fromkeys(device.name if device.is_gpu else "cpu" for device in prepared.environment.devices)
    where = re.sub(r"[^a-z0-9+]+", "-", "+".join(devices).lower()).strip("-")
    name = Path("results") / f"{suites}-{where}-{datetime.now():%Y%m%d-%H%M%S}"
    try:
        name.mkdir(parents=True)
    except FileExistsError:
        return name.with_name(f"{name.name}-{os.getpid()}")
    return name


def _require_writable(folder: Path) -> None:
    """Raise an OSError if no file can be written into a folder, or into what it would be made in."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    with tempfile.TemporaryFile(dir=there) as file:
        file.write(bytes(4096))
        file.flush()


def _earlier_start(folder: Path, prepared: PreparedRun) -> str | None:
    """Return when the run to continue was started; None if the folder has none.

    Raises:
        UsageError: it was made on another machine, with another request or on other data; seeds may be added, because
            each is a training of its own. Or its CSVs are not a run's, or nobody can tell which.
    """
    measured = [name for name in COLUMNS if read_header(folder / name) and has_rows(folder / name)]
    if not (folder / "run.json").exists():
        if measured:
            raise UsageError(
                f"'{folder / measured[0]}' has rows, but there is no run.json that says what was asked: restore it, or "
                "use another folder."
            )
        return None
    run = _read_run(folder)
    if measured:
        from bench.results import csv_file

        for name in measured:  # refuses what its report would refuse
            csv_file.read(folder / name, words="category" if name in LARGE else "object")
    now = json.loads(json.dumps(_describe_request(prepared), default=str))
    free = {
        "argv",
        "parameters",
        "out",
        "resume",
        "dry_run",
        "data_dir",
        "on",
        "trial_timeout_s",
        "tries",
    }  # suites hold their parameters
    seeds = {*(run["request"].get("seeds") or ()), *(one["seed"] for one in run.get("planned", ()))}
    if seeds <= {*(now["seeds"] or ()), *(trial.seed for trial in prepared.plan.trials)}:
        free.add("seeds")
    changed = [name for name, value in now.items() if run["request"].get(name) != value and name not in free]
    if changed:
        raise UsageError(
            f"The run in '{folder}' was started with other {', '.join(changed)}. Repeat its own options, "
            f"or only --resume {folder}, or start a new run with --out."
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


def _circumstances(environment: dict[str, Any]) -> str:
    """Name what must be the same for rows of one run to be compared."""
    threads = [device["threads"] for device in environment["devices"] if device.get("threads")]
    return f"torch {environment['torch']}" + (f" on {threads[0]} threads" if threads else "")


def _read_run(folder: Path) -> dict[str, Any]:
    """Read run.json of a run to continue."""
    run = read_run(folder)
    request, environment = run.get("request", {}), run.get("environment", {})
    needed = {
        "request.argv": request.get("argv"),
        "environment.torch": environment.get("torch"),
        "environment.devices": environment.get("devices"),
        "started": run.get("started"),
    }
    if lacking := [name for name, value in needed.items() if value is None]:
        raise UsageError(f"'{folder / 'run.json'}' lacks {lacking[0]}. Restore it, or start a new run.")
    return run


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
