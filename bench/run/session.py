"""A run: its plan is executed in its folder."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import bench
from bench.cli.display import open_display, show_remaining
from bench.cli.interruption import Interrupted, tell_interrupted
from bench.launch.launcher import Launcher
from bench.measure.sampler import Gpus, Sampler
from bench.results.records import Environment
from bench.results.run_json import planned, read_run
from bench.results.store import FAILURES, Store, StoreLostError, answers, edited
from bench.run.execute import Execution, now, remaining
from bench.run.folder import describe_request, earlier_start, locked, new_folder
from bench.run.prepare import PreparedRun
from bench.spec.errors import UsageError

SAMPLE_PERIOD_S = 0.2


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


def execute(prepared: PreparedRun, folder: Path | None, launcher: Launcher) -> tuple[Path, bool]:
    """Run the plan; return the run's folder, and whether no trial failed or hung.

    Raises:
        UsageError: the folder cannot be continued, or could not be written to the end.
    """
    folder = new_folder(prepared) if folder is None else folder
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        try:
            return folder, _execute(prepared, folder, launcher)
        except StoreLostError as error:
            raise UsageError(str(error)) from error


def _execute(prepared: PreparedRun, folder: Path, launcher: Launcher) -> bool:
    before = earlier_start(folder, prepared)
    environment = prepared.environment
    gpus = () if prepared.request.on is not None else sampled_gpus(environment)  # a cluster's are on other machines
    run = {
        "version": bench.__version__,
        "request": describe_request(prepared),
        "environment": environment,
        "data": [{**asdict(data), "source": str(data.source)} for data in prepared.data],
        "planned": [planned(trial) for trial in prepared.plan.trials],
        "warnings": list(prepared.warnings),
        "edited": edited(folder, read_run(folder)) if before else [],
        "started": before or now(),
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
                store.write_run({**run, "warnings": [*prepared.warnings, *launcher.notes, *lost], "finished": now()})
            except KeyboardInterrupt as stop:
                display.close()
                tell_interrupted(folder, tries=prepared.request.tries)
                raise Interrupted(folder if answers(folder).attempts else None) from stop
    finally:
        display.close()
    return fine


def sampled_gpus(environment: Environment) -> Gpus:
    """Return the GPUs whose telemetry is read, each once; those that train together are read one by one."""
    names = {uuid: name for device in environment.devices for uuid, name in device.gpus.items()}
    return tuple((name, uuid) for uuid, name in names.items())
