"""The trials of a plan that are not done, in its order, each as its phase measures it."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from bench.launch import run_concurrently
from bench.planning.resolution import MemoryTrials, memory_trials, resolve
from bench.results.records import MEASURED, TRIED_AGAIN, Status, TrialResult, utc_now
from bench.run.session import OutOfTimeError, Session
from bench.spec.phases import PHASES
from bench.spec.trial import Trial


def run_plan(session: Session) -> bool:
    """Run every unfinished trial of a session's plan.

    Returns:
        Whether something was measured, and nothing failed or hung.
    """
    launcher = session.launcher
    queues: defaultdict[str, list[tuple[int, Trial]]] = defaultdict(list)
    for number, planned in enumerate(session.plan.trials, 1):
        # Placements that share accelerators take turns, others may run concurrently. A launcher
        # that does so is Ray's, where all members of a placement are the same type of accelerator.
        resource = planned.cell.placement.members[0] if launcher.overlapping else "all"
        queues[resource].append((number, planned))
    jobs = [partial(_run_queue, queue, session) for queue in queues.values()]
    if launcher.overlapping:
        run_concurrently(jobs, launcher.cancel)
    else:
        for job in jobs:
            job()
    statuses: set[Status] = set()
    for arms in session.known.statuses.values():
        statuses.update(arms.values())
    return statuses.isdisjoint(TRIED_AGAIN) and not statuses.isdisjoint(MEASURED)


def _run_queue(queue: Sequence[tuple[int, Trial]], session: Session) -> None:
    """Run planned trials, each with its number, in their order; then further processes.

    Of these the cells take turns.
    """
    of_memory = memory_trials(session.plan)
    further: deque[Trial] = deque()
    for number, planned in queue:
        further += _run_trial(number, planned, of_memory, session)
        with session.lock:
            session.forecast.leave(planned)
    while further:
        process = further.popleft()
        # Asked only now: the noise, which decides too, is that of all processes so far.
        if _is_needed(process, session):
            with session.lock:
                session.total += 1
            further += _run_trial(session.total, process, of_memory, session)


def _is_further(trial: Trial) -> bool:
    """Return whether a trial comes after the last process of its cell that was planned."""
    may_follow = PHASES[trial.phase].is_enough is not None
    return may_follow and trial.replicate >= trial.protocol.replicates


def _is_needed(further: Trial, session: Session) -> bool:
    """Return whether the processes of a cell before a further one are not enough yet."""
    last = replace(further, replicate=further.replicate - 1)
    if "oom" in session.statuses(last).values():  # its arms were measured apart: nothing is paired
        return False
    is_enough = PHASES[further.phase].is_enough
    return is_enough is not None and not is_enough(last, session.speeds)


def _run_trial(
    number: int, planned: Trial, of_memory: MemoryTrials, session: Session
) -> Sequence[Trial]:
    """Measure what is left of a trial.

    Returns:
        The process that may follow in its cell: the first after the planned ones, or the next of
        those. None follows one that could not be measured.
    """
    with session.lock:
        session.numbers[planned.cell.placement.name] = number
    trial = resolve(planned, of_memory, session.known.statuses)
    if trial is not None and _is_left(trial, session):
        trial = _measure(trial, session)
    if trial is None:
        return ()
    if PHASES[trial.phase].checkpoints and session.known.is_done(trial):
        _drop_checkpoint(trial, session)
    following = replace(trial, replicate=trial.replicate + 1)
    # Processes before that are in the plan, and so in the queue already.
    return (following,) if _is_further(following) else ()


def _is_left(trial: Trial, session: Session) -> bool:
    """Return whether a trial has arms to measure, together or apart."""
    if not session.known.is_done(trial):
        return True
    is_led = PHASES[trial.phase].conduct is not None
    if is_led and "oom" in session.statuses(trial).values():
        # They did not fit together, and the run may have been stopped before all were measured
        # apart.
        return not all(session.known.is_done(alone) for alone in trial.apart())
    return False


def _measure(trial: Trial, session: Session) -> Trial | None:
    """Measure a trial as its phase does that.

    Returns:
        The trial without the arms that have crashed or hung in its cell, which get a row that says
        so. None if all have, or if there is not enough time.
    """
    begun_s = time.monotonic()
    with session.lock:
        end_s = begun_s + session.forecast.trial_s(trial)
    if end_s > session.deadline_s:
        _leave_undecided(trial, session)
        return None
    whole = _without_broken(trial, session)
    if not whole.arms:
        return None
    # The phase itself leads its trials where one process may not do: arms that fail together are
    # tried apart, and the search for the largest batch takes as many as it needs.
    conduct = PHASES[trial.phase].conduct or _in_one_process
    try:
        conduct(whole, session)
    except OutOfTimeError:
        _leave_undecided(whole, session)
        return None
    with session.lock:
        session.forecast.learn(trial, time.monotonic() - begun_s)
    return whole


def _in_one_process(trial: Trial, session: Session) -> None:
    session.keep(session.attempt(trial))


def _leave_undecided(trial: Trial, session: Session) -> None:
    """Note what the deadline leaves open."""
    more = "further processes for the " if _is_further(trial) else ""
    where = f"{trial.cell.suite.name} on {trial.cell.placement.name}"
    session.undecided[f"{more}{trial.phase} of {where}"] = None


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
