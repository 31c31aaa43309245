"""The trials of a plan that are not done, in its order, each as its phase measures it."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from functools import partial

from bench.launch import run_concurrently
from bench.planning.plan import Plan
from bench.planning.resolution import memory_trials, resolve
from bench.results.records import MEASURED, TRIED_AGAIN, Status, TrialResult
from bench.results.store import stored_results
from bench.run.attempt import now
from bench.run.derived_rows import stored_speeds
from bench.run.forecast import Forecast
from bench.run.session import OutOfTimeError, Session
from bench.spec.phases import PHASES
from bench.spec.placement import Placement
from bench.spec.trial import Trial


def run_plan(plan: Plan, session: Session) -> bool:
    """Run every unfinished trial; return whether something was measured, and nothing failed or hung."""
    folder, launcher = session.store.folder, session.launcher
    session.plan, session.forecast, session.total = plan, Forecast(plan), len(plan.trials)
    session.known, session.measured = stored_results(folder), stored_speeds(folder)
    if launcher.overlapping:
        pools: dict[str, set[Placement]] = {}  # placements on the same accelerators take turns
        for trial in plan.trials:
            placement = trial.cell.placement
            pools.setdefault(placement.members[0], set()).add(placement)
        jobs = [partial(_run_on, pool, session) for pool in pools.values()]
        run_concurrently(jobs, launcher.cancel)
    else:
        _run_on({trial.cell.placement for trial in plan.trials}, session)
    statuses: set[Status] = set()
    for arms in session.known.statuses.values():
        statuses.update(arms.values())
    return statuses.isdisjoint(TRIED_AGAIN) and not statuses.isdisjoint(MEASURED)


def _run_on(placements: set[Placement], session: Session) -> None:
    """Run the plan's trials on some placements; then, cell by cell in turns, processes until there are enough."""
    of_memory = memory_trials(session.plan)
    more: list[tuple[int, Trial]] = []
    """The next process of each cell that may need more, with the number of the plan's trial that
    takes as long."""
    for number, planned in enumerate(session.plan.trials):
        placement, phase = planned.cell.placement, PHASES[planned.phase]
        if placement not in placements:
            continue
        session.numbers[placement.name] = number + 1
        begun_s = time.monotonic()
        trial = resolve(planned, of_memory, session.known.statuses)
        is_left = trial is not None and not session.known.is_done(trial)
        measured = None if trial is None else _measure(trial, number, session)
        is_last = planned.replicate == planned.protocol.replicates - 1
        if phase.is_enough is not None and measured is not None and is_last:
            more.append((number, replace(measured, replicate=measured.replicate + 1)))
        took_s = time.monotonic() - begun_s
        with session.lock:
            session.forecast.end(number, took_s if is_left and measured is not None else None)
    while more:
        number, planned = more.pop(0)
        last, is_enough = (
            replace(planned, replicate=planned.replicate - 1),
            PHASES[planned.phase].is_enough,
        )
        if (
            is_enough is None
            or "oom" in session.statuses(last).values()
            or is_enough(last, session.measured)
        ):
            continue
        with session.lock:
            session.total += 1
            session.numbers[planned.cell.placement.name] = session.total
        trial = resolve(planned, of_memory, session.known.statuses)
        measured = None if trial is None else _measure(trial, number, session)
        if measured is not None:
            more.append((number, replace(measured, replicate=measured.replicate + 1)))


def _measure(trial: Trial, number: int, session: Session) -> Trial | None:
    """Measure what is not done of a trial, as its phase does that.

    Args:
        trial: what to measure.
        number: that of the plan's trial which should take as long.
        session: the run.

    Returns:
        The trial without the arms that have crashed or hung in its cell, which get a row that says
        so. None if all have, or if there is not enough time.
    """
    phase = PHASES[trial.phase]
    try:
        if not session.known.is_done(trial):
            with session.lock:
                end_s = time.monotonic() + session.forecast.trial_s(number)
            if end_s > session.deadline_s:
                raise OutOfTimeError
            trial = _without_broken(trial, session)
        if not trial.arms:
            return None
        # The phase itself leads its trials where one process may not do: arms that fail together
        # are tried apart, and the search for the largest batch takes as many as it needs.
        conduct = phase.conduct or once
        conduct(trial, session)
    except OutOfTimeError:
        is_added = trial.replicate >= trial.protocol.replicates
        more = "further processes for the " if is_added else ""
        where = f"{trial.cell.suite.name} on {trial.cell.placement.name}"
        session.undecided[f"{more}{trial.phase} of {where}"] = None
        return None
    if phase.checkpoints and session.known.is_done(trial):
        _drop_checkpoint(trial, session)
    return trial


def _without_broken(trial: Trial, session: Session) -> Trial:
    """Return a trial without the arms that have crashed or hung in its cell, which get a row that says so."""
    whole = []
    for arm in trial.arms:
        if (trial.cell, arm.name) not in session.broken:
            whole.append(arm)
            continue
        status, why = session.broken[trial.cell, arm.name]
        alone = replace(trial, arms=(arm,))
        session.begin(alone)
        result = TrialResult(precision=arm.name, status=status, detail=why, started=now())
        session.store_results(alone, [result])
    return replace(trial, arms=tuple(whole))


def _drop_checkpoint(trial: Trial, session: Session) -> None:
    """Remove the checkpoint of a training that has ended, also of a run which was killed."""
    path = session.store.folder / trial.checkpoint
    path.unlink(missing_ok=True)
    with suppress(OSError):  # others are still there, or there was none
        path.parent.rmdir()


def once(trial: Trial, session: Session) -> None:
    """Measure a trial in one process, where its phase does not say otherwise."""
    if not session.known.is_done(trial):
        session.keep(session.run(trial))
