"""The trials of a plan that are not done, in its order, each as its phase measures it."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from contextlib import suppress
from dataclasses import replace
from functools import partial

from bench.launch import run_concurrently
from bench.planning.plan import Plan
from bench.planning.resolution import memory_trials, resolve
from bench.results.records import MEASURED, TRIED_AGAIN, Status, TrialResult, utc_now
from bench.results.store import stored_results
from bench.run.derived_rows import stored_speeds
from bench.run.forecast import Forecast
from bench.run.session import OutOfTimeError, Session
from bench.spec.phases import PHASES
from bench.spec.placement import Placement
from bench.spec.trial import Trial


def run_plan(plan: Plan, session: Session) -> bool:
    """Run every unfinished trial.

    Returns:
        Whether something was measured, and nothing failed or hung.
    """
    folder, launcher = session.store.folder, session.launcher
    session.plan = plan
    session.forecast = Forecast(plan)
    session.total = len(plan.trials)
    session.known = stored_results(folder)
    session.measured = stored_speeds(folder)
    pools: defaultdict[str, set[Placement]] = defaultdict(set)
    for trial in plan.trials:
        placement = trial.cell.placement
        pools[placement.members[0]].add(placement)
    if launcher.overlapping:  # only placements on the same accelerators take turns
        jobs = [partial(_run_on, pool, session) for pool in pools.values()]
        run_concurrently(jobs, launcher.cancel)
    else:
        _run_on(set().union(*pools.values()), session)
    statuses: set[Status] = set()
    for arms in session.known.statuses.values():
        statuses.update(arms.values())
    return statuses.isdisjoint(TRIED_AGAIN) and not statuses.isdisjoint(MEASURED)


def _run_on(placements: set[Placement], session: Session) -> None:
    """Run the plan's trials on some placements, then further processes, the cells by turns."""
    of_memory = memory_trials(session.plan)
    # Each trial with the number of the plan's trial that takes as long.
    queue = deque(enumerate(session.plan.trials))
    while queue:
        number, planned = queue.popleft()
        placement = planned.cell.placement
        if placement not in placements or not _is_needed(planned, session):
            continue
        is_added = _is_added(planned)
        with session.lock:
            if is_added:
                session.total += 1
            session.numbers[placement.name] = session.total if is_added else number + 1
        begun_s = time.monotonic()
        trial = resolve(planned, of_memory, session.known.statuses)
        is_left = trial is not None and not session.known.is_done(trial)
        measured = None if trial is None else _measure(trial, number, session)
        if not is_added:
            took_s = time.monotonic() - begun_s
            is_timed = is_left and measured is not None
            with session.lock:
                session.forecast.end(number, took_s if is_timed else None)
        if measured is not None:
            further = replace(measured, replicate=measured.replicate + 1)
            if _is_added(further):
                queue.append((number, further))


def _is_added(trial: Trial) -> bool:
    """Return whether a trial comes after the last process of its cell that was planned."""
    has_limit = PHASES[trial.phase].is_enough is not None
    return has_limit and trial.replicate >= trial.protocol.replicates


def _is_needed(trial: Trial, session: Session) -> bool:
    """Return whether a trial was planned, or the processes of its cell are not enough yet."""
    is_enough = PHASES[trial.phase].is_enough
    if is_enough is None or not _is_added(trial):
        return True
    last = replace(trial, replicate=trial.replicate - 1)
    if "oom" in session.statuses(last).values():  # its arms were measured apart: nothing is paired
        return False
    return not is_enough(last, session.measured)


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
        more = "further processes for the " if _is_added(trial) else ""
        where = f"{trial.cell.suite.name} on {trial.cell.placement.name}"
        session.undecided[f"{more}{trial.phase} of {where}"] = None
        return None
    if phase.checkpoints and session.known.is_done(trial):
        _drop_checkpoint(trial, session)
    return trial


def _without_broken(trial: Trial, session: Session) -> Trial:
    """Leave out the arms that have crashed or hung in a trial's cell, with a row that says so."""
    whole = []
    for arm in trial.arms:
        broken = session.broken.get((trial.cell, arm.name))
        if broken is None:
            whole.append(arm)
            continue
        status, why = broken
        alone = replace(trial, arms=(arm,))
        session.begin(alone)
        result = TrialResult(arm=arm.name, status=status, detail=why, started=utc_now())
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
