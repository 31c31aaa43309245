"""Run a plan, trial by trial: launch what is not done, store what it sent, show how it ended."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import RLock
from typing import Any

from bench.cli.display import Display
from bench.launch import Launcher, run_concurrently
from bench.measure.sampler import Sampler
from bench.planning.plan import Plan
from bench.planning.resolution import memory_trials, resolve
from bench.results.records import MEASURED, Device, Message, Progress, Status, TrialResult
from bench.results.store import FAILURES, Store, StoredResults, stored_results
from bench.run.derived_rows import stored_speeds, with_derived
from bench.run.forecast import Forecast
from bench.run.process import Attempt, now, run_process
from bench.spec.phases import PHASES
from bench.spec.placement import Placement
from bench.spec.trial import Cell, Trial

NOTHING = Plan(trials=(), seconds=())


class OutOfTimeError(Exception):
    """The time of ``--within`` is up, or a trial should take longer than what is left of it."""


@dataclass(slots=True)
class Runner:
    """A run in progress."""

    store: Store
    devices: Mapping[str, Device]
    launcher: Launcher
    sampler: Sampler
    display: Display
    deadline_s: float = math.inf
    """When measuring ends, on the monotonic clock."""
    plan: Plan = NOTHING
    forecast: Forecast = field(default_factory=lambda: Forecast(NOTHING))
    known: StoredResults = field(default_factory=StoredResults)
    """The results so far."""
    measured: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By the id of a trial the rows of its measured arms, with what follows from their details."""
    broken: dict[tuple[Cell, str], tuple[Status, str]] = field(default_factory=dict)
    """The arms that crashed or hung in a cell, with the status and the reason of their further rows."""
    undecided: dict[str, None] = field(default_factory=dict)
    """What the deadline left open, such as ``speed of mlp on cpu``."""
    total: int = 0
    """How many trials there are as far as is known: the plan's, and the processes that were added."""
    lock: RLock = field(default_factory=RLock)
    """Guards the store, the display and the forecast where trials of different accelerators run concurrently."""

    def run(self, plan: Plan) -> bool:
        """Run every unfinished trial; return whether something was measured, and nothing failed or hung."""
        self.plan, self.forecast, self.total = plan, Forecast(plan), len(plan.trials)
        self.known = stored_results(self.store.folder)
        self.measured = stored_speeds(self.store.folder)
        if self.launcher.overlapping:
            pools: dict[str, set[Placement]] = {}  # placements on the same accelerators take turns
            for trial in plan.trials:
                placement = trial.cell.placement
                pools.setdefault(placement.members[0], set()).add(placement)
            jobs = [partial(self._run_on, pool) for pool in pools.values()]
            run_concurrently(jobs, self.launcher.cancel)
        else:
            self._run_on({trial.cell.placement for trial in plan.trials})
        statuses: set[Status] = set()
        for arms in self.known.statuses.values():
            statuses.update(arms.values())
        return statuses.isdisjoint(FAILURES) and not statuses.isdisjoint(MEASURED)

    def _run_on(self, placements: set[Placement]) -> None:
        """Run the plan's trials on some placements; then, cell by cell in turns, processes until there are enough."""
        fits = memory_trials(self.plan)
        waiting = deque(enumerate(self.plan.trials))
        """Each with the number of the plan's trial that takes as long."""
        while waiting:
            number, planned = waiting.popleft()
            if planned.cell.placement not in placements:
                continue
            is_enough, fewest = PHASES[planned.phase].is_enough, planned.protocol.replicates
            is_added = is_enough is not None and planned.replicate >= fewest
            if is_added:
                last = replace(planned, replicate=planned.replicate - 1)
                fits_together = "oom" not in self.known.statuses.get(last.id, {}).values()
                if not fits_together or is_enough(last, self.measured):
                    continue
                with self.lock:
                    self.total += 1
            begun_s = time.monotonic()
            trial = resolve(planned, fits, self.known.statuses)
            is_left = trial is not None and not self.known.is_done(trial)
            measured = None
            if trial is not None:
                place = self.total if is_added else number + 1
                measured = self._measure(trial, number, Turn(self, trial, place))
            if is_enough is not None and measured is not None and measured.replicate >= fewest - 1:
                waiting.append((number, replace(measured, replicate=measured.replicate + 1)))
            with self.lock:
                if not is_added:
                    took_s = time.monotonic() - begun_s
                    self.forecast.end(number, took_s if is_left and measured is not None else None)

    def _measure(self, trial: Trial, number: int, turn: Turn) -> Trial | None:
        """Measure what is not done of a trial, as its phase does that (``Phase.conduct``).

        Args:
            trial: what to measure.
            number: that of the plan's trial which should take as long.
            turn: the trial's.

        Returns:
            The trial without the arms that have crashed or hung in its cell, which get a row that says so. None if all
            have, or if there is not enough time.
        """
        phase = PHASES[trial.phase]
        try:
            if not self.known.is_done(trial):
                with self.lock:
                    end_s = time.monotonic() + self.forecast.trial_s(number)
                if end_s > self.deadline_s:
                    raise OutOfTimeError
                trial = self._without_broken(trial, turn)
            if not trial.arms:
                return None
            conduct = phase.conduct or once
            conduct(trial, turn)
        except OutOfTimeError:
            is_added = trial.replicate >= trial.protocol.replicates
            more = "further processes for the " if is_added else ""
            where = f"{trial.cell.suite.name} on {trial.cell.placement.name}"
            self.undecided[f"{more}{trial.phase} of {where}"] = None
            return None
        if phase.checkpoints:
            self._drop_checkpoint(trial)
        return trial

    def _without_broken(self, trial: Trial, turn: Turn) -> Trial:
        """Return a trial without the arms that have crashed or hung in its cell, which get a row that says so."""
        whole = []
        for arm in trial.arms:
            if (trial.cell, arm.name) not in self.broken:
                whole.append(arm)
                continue
            status, why = self.broken[trial.cell, arm.name]
            alone = replace(trial, arms=(arm,))
            turn.begin(alone)
            result = TrialResult(precision=arm.name, status=status, detail=why, started=now())
            turn.store(alone, [result])
        return replace(trial, arms=tuple(whole))

    def _drop_checkpoint(self, trial: Trial) -> None:
        """Remove a training's checkpoint, also that of a run which was killed, unless it will be resumed from it."""
        if self.known.is_done(trial):
            path = self.store.folder / trial.checkpoint
            path.unlink(missing_ok=True)
            with suppress(OSError):  # others are still there, or there was none
                path.parent.rmdir()


@dataclass(frozen=True, slots=True)
class Turn:
    """A trial's turn in a run: what its phase measures it with (``Phase.conduct``)."""

    runner: Runner
    trial: Trial
    place: int
    """The trial's number among ``Runner.total``."""

    @property
    def plan(self) -> Plan:
        """The plan that the trial is of."""
        return self.runner.plan

    @property
    def device(self) -> Device:
        """Where the trial is measured."""
        return self.runner.devices[self.trial.cell.placement.name]

    def is_done(self, trial: Trial) -> bool:
        """Return whether all arms of a trial have final rows, together or apart."""
        return self.runner.known.is_done(trial)

    def final_arms(self, trial: Trial) -> set[str]:
        """Return the names of the arms of a trial that have a final row."""
        return self.runner.known.final(trial)

    def statuses(self, trial: Trial) -> Mapping[str, Status]:
        """Return the statuses of a trial's arms, by name; none of a trial that has not ended."""
        return self.runner.known.statuses.get(trial.id, {})

    def note(self, text: str) -> None:
        """Show a sentence."""
        with self.runner.lock:
            self.runner.display.note(text)

    def begin(self, trial: Trial) -> None:
        """Show that a trial begins, and how long the run goes on."""
        runner = self.runner
        with runner.lock:
            left_s = runner.forecast.left_s()
            if runner.deadline_s < math.inf:
                until_deadline_s = runner.deadline_s - time.monotonic()
                left_s = until_deadline_s if left_s is None else min(left_s, until_deadline_s)
            runner.display.begin(trial, self.place, runner.total, left_s)

    def run(self, trial: Trial) -> Attempt:
        """Run one process of a trial, of which nothing is stored yet.

        Raises:
            OutOfTimeError: the deadline has passed.
        """
        self.begin(trial)
        take, keep_log = partial(self._take, trial), partial(self._keep_log, trial)
        return run_process(trial, self.device, self.runner.launcher, take, keep_log)

    def _keep_log(self, trial: Trial, text: str) -> None:
        """Keep what a process that failed has printed in the run's folder."""
        store = self.runner.store
        path = store.folder / trial.log
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, errors="backslashreplace")
        except OSError as error:  # on a full disk that is often why the trial failed, and so would the next
            raise store.lost(error) from error

    def _take(self, trial: Trial, message: Message) -> None:
        """Show a message's progress, and store what was read of the GPUs meanwhile.

        Raises:
            OutOfTimeError: the deadline has passed.
        """
        runner = self.runner
        if time.monotonic() > runner.deadline_s:
            self.note(f"{trial.id}: ended by --within; --resume measures it")
            raise OutOfTimeError
        if isinstance(message, Progress):
            with runner.lock:
                samples = runner.sampler.drain()
                runner.store.add(samples)
                runner.display.progress(message, samples)

    def keep(self, attempt: Attempt) -> None:
        """Store what a process sent; an arm that crashed or hung is not tried again in its cell."""
        trial, result = attempt.trial, attempt.results[-1]
        if attempt.is_broken and result.status not in MEASURED:
            before = self.statuses(replace(trial, replicate=trial.replicate - 1))
            # Of two processes that read an arm's memory, one that ran is enough.
            has_fitted = PHASES[trial.phase].finds_unfit and {*before.values()} & {*MEASURED}
            if not has_fitted:
                reason = f"not tried again: in {trial.id}, {result.detail}"
                self.runner.broken[trial.cell, trial.arms[0].name] = result.status, reason
        self.store(trial, attempt.results, attempt.records)

    def discard(self, attempt: Attempt) -> None:
        """Show how a process ended, of which nothing is stored."""
        results = with_derived(attempt.trial, attempt.results, attempt.records)
        with self.runner.lock:
            self.runner.display.end(attempt.trial, results)

    def store(self, trial: Trial, results: Sequence[TrialResult], records: Sequence[Message] = ()) -> None:
        """Store a trial's results, and show them."""
        runner, known = self.runner, self.runner.known
        with runner.lock:
            samples = runner.sampler.drain()
            runner.store.add_results(trial, self.device, results, [*samples, *records])
            results = with_derived(trial, results, records)
            runner.display.end(trial, results)
        statuses = {result.precision: result.status for result in results}
        known.statuses[trial.id] = statuses
        if "oom" not in statuses.values():  # its rows took the place of those of its arms apart
            for alone in trial.apart():
                known.statuses.pop(alone.id, None)
        rows = runner.measured[trial.id] = {}
        for result in results:
            if result.status in MEASURED and result.row is not None:
                rows[result.precision] = result.row


def once(trial: Trial, turn: Turn) -> None:
    """Measure a trial in one process, where its phase does not say otherwise."""
    if not turn.is_done(trial):
        turn.keep(turn.run(trial))
