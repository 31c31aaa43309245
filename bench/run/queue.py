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
from bench.results.records import MEASURED, TRIED_AGAIN, Status, TrialResult, now
from bench.run.session import OutOfTimeError, Session
from bench.spec.phases import PHASES
from bench.spec.trial import Trial

# Trials of a plan, each with its number there.
Numbered = Sequence[tuple[int, Trial]]


def run_plan(session: Session) -> bool:
    """Run every unfinished trial of a session's plan.

    Returns:
        Whether something was measured, and nothing failed or hung.
    """
    launcher = session.launcher
    queue = [*enumerate(session.plan.trials, 1)]
    if launcher.overlapping:
        # Placements that share accelerators take turns, others run concurrently. Such a launcher is
        # Ray's, where each member of a placement is a type of accelerator, and all are the same.
        queues: defaultdict[str, list[tuple[int, Trial]]] = defaultdict(list)
        for number, planned in queue:
            queues[planned.cell.placement.members[0]].append((number, planned))
        jobs = [partial(_run_queue, each, session) for each in queues.values()]
        run_concurrently(jobs, launcher.cancel)
    else:
        _run_queue(queue, session)
    statuses: set[Status] = set()
    for arms in session.known.statuses.values():
        statuses.update(arms.values())
    return statuses.isdisjoint(TRIED_AGAIN) and not statuses.isdisjoint(MEASURED)


def _run_queue(queue: Numbered, session: Session) -> None:
    """Run planned trials in their order, then further processes, the cells by turns."""
    of_memory = memory_trials(session.plan)
    further: deque[Trial] = deque()
    for number, planned in queue:
        with session.lock:
            session.numbers[planned.cell.placement.name] = number
        trial = _run_trial(planned, of_memory, session)
        with session.lock:
            session.forecast.leave(planned)
        if trial is not None:
            further.extend(_following(trial))
    while further:
        planned = further.popleft()
        # Asked only now: the noise, which decides too, is that of all processes so far.
        if not _is_needed(planned, session):
            continue
        with session.lock:
            session.total += 1
            session.numbers[planned.cell.placement.name] = session.total
        trial = _run_trial(planned, of_memory, session)
        if trial is not None:
            further.extend(_following(trial))


def _following(trial: Trial) -> Sequence[Trial]:
    """Return the next process of a trial's cell, if it would be the first after the planned ones.

    Those before are in the plan, and so in the queue already.
    """
    further = replace(trial, replicate=trial.replicate + 1)
    return (further,) if _is_further(further) else ()


def _is_further(trial: Trial) -> bool:
    """Return whether a trial comes after the last process of its cell that was planned."""
    may_follow = PHASES[trial.phase].is_enough is not None
    return may_follow and trial.replicate >= trial.protocol.replicates


def _is_needed(further: Trial, session: Session) -> bool:
    """Return whether the processes of a cell before a further one are not enough yet."""
    is_enough = PHASES[further.phase].is_enough
    last = replace(further, replicate=further.replicate - 1)
    if is_enough is None or "oom" in session.statuses(last).values():
        return False  # its arms were measured apart: nothing is paired
    return not is_enough(last, session.speeds)


def _run_trial(planned: Trial, of_memory: MemoryTrials, session: Session) -> Trial | None:
    """Measure what is left of a trial.

    Returns:
        The trial without the arms that do not fit, or that have crashed or hung in its cell. None
        if no arm is left, or if there is not enough time.
    """
    trial = resolve(planned, of_memory, session.known.statuses)
    if trial is not None and _is_left(trial, session):
        trial = _measure(trial, session)
    if trial is not None and PHASES[trial.phase].checkpoints and session.known.is_done(trial):
        _drop_checkpoint(trial, session)
    return trial


def _is_left(trial: Trial, session: Session) -> bool:
    """Return whether a trial has arms to measure, together or apart."""
    if not session.known.is_done(trial):
        return True
    if PHASES[trial.phase].conduct is None or "oom" not in session.statuses(trial).values():
        return False
    # They did not fit together, and the run may have been stopped before all were measured apart.
    return not all(session.known.is_done(alone) for alone in trial.apart())


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
        result = TrialResult(precision=arm.name, status=status, detail=why, started=now())
        session.store_results(alone, [result])
    return replace(trial, arms=tuple(whole))


def _drop_checkpoint(trial: Trial, session: Session) -> None:
    """Remove the checkpoint of a training that has ended, also of a run which was killed."""
    path = session.store.folder / trial.checkpoint
    path.unlink(missing_ok=True)
    with suppress(OSError):  # others are still there, or there was none
        path.parent.rmdir()
