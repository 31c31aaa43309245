"""Run a plan in its folder: the store, the telemetry and run.json around its trials."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import bench
from bench.cli.display import open_display, show_remaining
from bench.launch import Launcher
from bench.measure.sampler import Gpus, Sampler
from bench.planning.batch_sizes import Largest, at_any_size
from bench.planning.estimate import REPORT_S
from bench.planning.plan import Plan
from bench.planning.resolution import memory_trials, resolve
from bench.results.records import Environment
from bench.results.run_json import planned as describe_planned
from bench.results.run_json import read_run
from bench.results.store import Store, StoredResults, stored_results
from bench.run.attempt import now
from bench.run.folder import describe_request, earlier_start, locked
from bench.run.prepare import PreparedRun
from bench.run.runner import Runner
from bench.spec.phases import SEARCHES
from bench.spec.trial import Trial

SAMPLE_PERIOD_S = 0.2


def tell_what_remains(prepared: PreparedRun, folder: Path | None) -> None:
    """Say how much of the plan of a run that goes on is finished; nothing of a new run.

    Raises:
        UsageError: a CSV of it cannot be read.
    """
    if folder is not None and (folder / "run.json").exists():
        show_remaining(prepared.plan, remaining(prepared.plan, stored_results(folder)))


def execute(prepared: PreparedRun, folder: Path, launcher: Launcher, begun_s: float | None = None) -> bool:
    """Run the plan in a folder, which is made if it is missing; return whether no trial failed or hung.

    Args:
        prepared: the run.
        folder: its folder.
        launcher: what runs its trials.
        begun_s: when the time of ``--within`` began, on the monotonic clock; None is now.

    Raises:
        UsageError: the folder cannot be continued, or could not be written to the end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        return _execute(prepared, folder, launcher, _deadline_s(prepared.request.within_s, begun_s))


def _deadline_s(within_s: float | None, begun_s: float | None) -> float:
    """Return when measuring is to end, on the monotonic clock, so that the report ends in time.

    The report is left as long as the preparation took, which imports libraries, too, and was longer on this project's
    machines, quiet or loaded; and twice its usual time at least, because a trial ends up to 2 s after its deadline.
    """
    if within_s is None:
        return math.inf
    now_s = time.monotonic()
    begun_s = now_s if begun_s is None else begun_s
    return begun_s + within_s - min(max(2 * REPORT_S, now_s - begun_s), within_s / 4)


def _execute(prepared: PreparedRun, folder: Path, launcher: Launcher, deadline_s: float) -> bool:
    before = earlier_start(folder, prepared)
    earlier = read_run(folder) if before else {}
    environment = prepared.environment
    gpus = () if prepared.request.on is not None else sampled_gpus(environment)  # a cluster's are on other machines
    run: dict[str, Any] = {
        "version": bench.__version__,
        "request": describe_request(prepared),
        "environment": environment,
        "data": [
            asdict(data)
            | {"source": str(data.source), "left_out": len(data.left_out)}
            | {"first_left_out": next(iter(data.left_out), "")}
            for data in prepared.data
        ],
        "planned": [describe_planned(trial) for trial in prepared.plan.trials],
        "warnings": list(dict.fromkeys([*earlier.get("warnings", ()), *prepared.warnings])),
        "started": before or now(),
        "finished": None,
    }

    def end(finished: str | None, undecided: Iterable[str] = ()) -> None:
        lost = [f"GPU {placement} was lost to NVML: {reason}" for placement, reason in sampler.lost.items()]
        warnings = list(dict.fromkeys([*run["warnings"], *launcher.notes, *lost]))
        store.write_run({**run, "warnings": warnings, "undecided": [*undecided], "finished": finished})

    display = open_display(() if prepared.request.on is not None else environment.devices)
    try:
        with ExitStack() as stack:
            store = Store(folder)
            store.write_run(run)  # first, so that whatever happens --resume finds a run
            sampler = stack.enter_context(Sampler(gpus, SAMPLE_PERIOD_S))
            launcher.workspace = folder.resolve()
            devices = {device.placement: device for device in environment.devices}
            runner = Runner(
                store=store,
                devices=devices,
                launcher=launcher,
                sampler=sampler,
                display=display,
                deadline_s=deadline_s,
            )
            try:
                if prepared.replan is None:
                    fine = runner.run(prepared.plan)
                else:  # the searches for the largest batches first, then the whole plan at them
                    searched = runner.run(prepared.plan.only(lambda trial: trial.phase in SEARCHES))
                    plan = prepared.replan(largest_batches(prepared.plan, folder))
                    run["planned"] = [describe_planned(trial) for trial in plan.trials]
                    store.write_run(run)
                    display.note(f"The largest batches are known: {len(plan.trials)} trials at them and at others.")
                    fine = runner.run(plan) and searched
                store.add(sampler.stop())
                end(None if runner.undecided else now(), runner.undecided)
            except KeyboardInterrupt:
                end(None)  # with the warnings so far
                raise
    finally:
        display.close()
    return fine


def sampled_gpus(environment: Environment) -> Gpus:
    """Return the GPUs whose telemetry is read, each once; those that train together are read one by one."""
    names = {uuid: name for device in environment.devices for uuid, name in device.gpus.items()}
    return tuple((name, uuid) for uuid, name in names.items())


def remaining(plan: Plan, known: StoredResults) -> Plan:
    """Return the part of a plan that has no final rows."""
    fits = memory_trials(plan)

    def is_left(planned: Trial) -> bool:
        trial = resolve(planned, fits, known.statuses)
        return trial is not None and not known.is_done(trial)

    return plan.only(is_left)


def largest_batches(plan: Plan, folder: Path) -> Largest:
    """Return the largest batches found by a plan's searches, before a resumption too."""
    stored = stored_results(folder)
    largest = {}
    for trial in plan.trials:
        arm = trial.precisions[0]
        if trial.phase in SEARCHES and stored.statuses.get(trial.id, {}).get(arm) == "ok":
            largest[at_any_size(trial.cell), arm] = stored.batch_sizes[trial.id]
    return largest
