"""A run around its trials: the lock of its folder, the store, the telemetry and run.json."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.cli.display import open_display
from bench.launch import Launcher
from bench.measure.sampler import Gpus, Sampler
from bench.planning.batch_sizes import Largest, at_any_size
from bench.planning.estimate import REPORT_S
from bench.planning.plan import Plan
from bench.planning.resolution import memory_trials, resolve
from bench.report.reading.trials import check_details
from bench.results.records import Environment, utc_now
from bench.results.run_json import planned
from bench.results.store import Store, stored_results
from bench.run.folder import describe, earlier_run, locked, require_same_question
from bench.run.prepare import PreparedRun
from bench.run.queue import run_plan
from bench.run.session import Session
from bench.spec.phases import SEARCHES
from bench.spec.trial import Trial


def execute(prepared: PreparedRun, folder: Path, launcher: Launcher, begun_s: float) -> bool:
    """Run the plan in a folder, which is made if it is missing.

    Args:
        prepared: the run.
        folder: its folder.
        launcher: what runs its trials.
        begun_s: when the time of ``--within`` began, on the monotonic clock.

    Returns:
        Whether it measured, and nothing failed or hung.

    Raises:
        UsageError: the folder cannot be continued, or could not be written to the end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder), closing(open_display()) as display:
        require_same_question(folder, prepared)  # another process may have been faster
        earlier = earlier_run(folder)
        run = describe(prepared)
        _add_warnings(run, [*earlier.get("warnings", ()), *prepared.warnings])
        run["started"] = earlier.get("started") or utc_now()
        store = Store(folder)
        store.write_run(run)  # first, so that whatever happens --resume finds a run
        # A cluster's GPUs are in other machines.
        gpus = sampled_gpus(prepared.environment) if prepared.request.on is None else ()
        with Sampler(gpus) as sampler:
            launcher.workspace = folder.resolve()
            session = Session(
                plan=prepared.plan,
                store=store,
                devices={device.placement: device for device in prepared.environment.devices},
                launcher=launcher,
                sampler=sampler,
                display=display,
                deadline_s=_deadline_s(prepared.request.within_s, begun_s),
            )
            try:
                fine = _run(prepared, session, run)
                store.add(sampler.stop())
                run["undecided"] = [*session.undecided]
                run["finished"] = None if session.undecided else utc_now()
            finally:  # whatever ended the run, with the warnings so far
                _add_warnings(run, launcher.notes)
                for gpu, why in sampler.lost.items():
                    _add_warnings(run, [f"GPU {gpu} was lost to NVML: {why}"])
                store.write_run(run)
    return fine


def _run(prepared: PreparedRun, session: Session, run: dict[str, Any]) -> bool:
    """Run the plan, and the searches for the largest batches before it is made in full."""
    is_fine = True
    if prepared.replan is not None:
        session.follow(prepared.plan.only(lambda trial: trial.phase in SEARCHES))
        is_fine = run_plan(session)
        plan = prepared.replan(largest_batches(prepared.plan, session.store.folder))
        # So that a report knows what is missing, should the run be stopped from here on.
        run["planned"] = [planned(trial) for trial in plan.trials]
        session.store.write_run(run)
        session.follow(plan)
    return run_plan(session) and is_fine


def _add_warnings(run: dict[str, Any], warnings: Sequence[str]) -> None:
    """Add warnings to a run, each once."""
    for warning in warnings:
        if warning not in run["warnings"]:
            run["warnings"].append(warning)


def _deadline_s(within_s: float | None, begun_s: float) -> float:
    """Return when measuring is to end, on the monotonic clock, so that the report ends in time.

    The report is left as long as the preparation took, which imports libraries, too, and was longer
    on this project's machines, quiet or loaded; and twice its usual time at least, because a trial
    ends up to ``POLL_S`` of ``bench.launch.local`` after its deadline.
    """
    if within_s is None:
        return math.inf
    report_s = max(2 * REPORT_S, time.monotonic() - begun_s)
    # In very little time most of it is for measuring all the same.
    report_s = min(report_s, within_s / 4)
    return begun_s + within_s - report_s


def sampled_gpus(environment: Environment) -> Gpus:
    """Return the GPUs whose telemetry is read, each once, with what ``--gpus`` calls it.

    Those that train together are read one by one.
    """
    names: dict[str, str] = {}
    for device in environment.devices:
        names |= device.gpus
    return tuple((name, uuid) for uuid, name in names.items())


def remaining(plan: Plan, folder: Path | None) -> Plan:
    """Return the part of a plan that has no final rows in a folder.

    Raises:
        UsageError: a CSV cannot be read.
    """
    if folder is None:
        return plan
    if (folder / "run.json").exists():
        check_details(folder)
    known = stored_results(folder)
    of_memory = memory_trials(plan)

    def is_left(asked: Trial) -> bool:
        trial = resolve(asked, of_memory, known.statuses)
        return trial is not None and not known.is_done(trial)

    return plan.only(is_left)


def largest_batches(plan: Plan, folder: Path) -> Largest:
    """Return the largest batches found by a plan's searches, before a resumption too."""
    stored = stored_results(folder)
    largest = {}
    for trial in plan.trials:
        arm = trial.arm_names[0]
        statuses = stored.statuses.get(trial.id, {})
        # The id of a search has no batch size in it, which the row has once it is found.
        if trial.phase in SEARCHES and statuses.get(arm) == "ok":
            largest[at_any_size(trial.cell), arm] = stored.batch_sizes[trial.id]
    return largest
