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
from bench.run.attempt import Attempt, attempt, now
from bench.run.figures import stored_speeds, with_figures
from bench.run.forecast import Forecast
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
    """By the id of a trial the rows of its measured arms, with the figures that follow from their details."""
    broken: dict[tuple[Cell, str], tuple[Status, str]] = field(default_factory=dict)
    """The arms that crashed or hung in a cell, with the status and the reason of their further rows."""
    undecided: dict[str, None] = field(default_factory=dict)
    """What the deadline left open, such as ``speed of mlp on cpu``."""
    reached: int = 0
    """How many trials the run has come to, those included that it need not measure."""
    total: int = 0
    """How many it comes to as far as is known: the plan's, and the processes that were added."""
    lock: RLock = field(default_factory=RLock)
    """Guards the store, the display and the forecast where trials of different accelerators run concurrently."""

    def run(self, plan: Plan) -> bool:
        """Run every unfinished trial; return whether something was measured, and nothing failed or hung."""
        self.plan, self.forecast = plan, Forecast(plan)
        self.known, self.measured = stored_results(self.store.folder), stored_speeds(self.store.folder)
        self.reached, self.total = 0, len(plan.trials)
        placements = dict.fromkeys(trial.cell.placement for trial in plan.trials)
        if self.launcher.overlapping:
            pools: dict[str, set[Placement]] = {}  # placements on the same accelerators take turns
            for placement in placements:
                pools.setdefault(placement.members[0], set()).add(placement)
            run_concurrently([partial(self._run_on, pool) for pool in pools.values()], self.launcher.cancel)
        else:
            self._run_on({*placements})
        statuses = {status for trial in self.known.statuses.values() for status in trial.values()}
        return not statuses & {*FAILURES} and bool(statuses & {*MEASURED})

    def _run_on(self, placements: set[Placement]) -> None:
        """Run the plan's trials on some placements; then, cell by cell in turns, processes until there are enough."""
        fits = memory_trials(self.plan)
        cells = deque[tuple[int, Trial]]()
        """The last process of each cell, with the number of its last planned one."""
        for number, planned in enumerate(self.plan.trials):
            if planned.cell.placement not in placements:
                continue
            place = self._next_place()
            trial = resolve(planned, fits, self.known.statuses)
            if trial is None:
                self._skip(number)
                continue
            measured = self._measure(number, trial, place)
            if measured is not None and measured.replicate == measured.protocol.replicates - 1:
                cells.append((number, measured))
        while cells:
            number, last = cells.popleft()
            is_enough = PHASES[last.phase].is_enough
            fits_together = "oom" not in self.known.statuses.get(last.id, {}).values()
            if is_enough is None or not fits_together or is_enough(last, self.measured):
                continue
            following = replace(last, replicate=last.replicate + 1)
            measured = self._measure(number, following, self._next_place(added=1))
            if measured is not None:
                cells.append((number, measured))

    def _next_place(self, added: int = 0) -> tuple[int, int]:
        """Return the number of the next trial, and of how many, after more than the plan's were added."""
        with self.lock:
            self.reached += 1
            self.total += added
            return self.reached, self.total

    def _skip(self, number: int) -> None:
        """Note that a trial of the plan, by its number, takes no time."""
        with self.lock:
            self.forecast.skip(number)

    def _measure(self, number: int, trial: Trial, place: tuple[int, int]) -> Trial | None:
        """Measure what is not done of a trial, as its phase does that.

        Args:
            number: that of the plan's trial which should take as long.
            trial: what to measure.
            place: its number, and of how many, for the display.

        Returns:
            The trial without the arms that have crashed or hung in its cell, which get a row that says so. None if all
            have, or if there is not enough time.
        """
        turn = Turn(self, place, self.devices[trial.cell.placement.name])
        phase, begun_s = PHASES[trial.phase], time.monotonic()
        is_done, is_added = self.known.is_done(trial), trial.replicate >= trial.protocol.replicates
        try:
            if not is_done:
                with self.lock:
                    end_s = begun_s + self.forecast.trial_s(number)
                if end_s > self.deadline_s:
                    raise OutOfTimeError
                trial = self._without_broken(trial, turn)
            if trial.arms:
                conduct = phase.conduct or once
                conduct(trial, turn)
        except OutOfTimeError:
            more = "further processes for the " if is_added else ""
            self.undecided[f"{more}{trial.phase} of {trial.cell.suite.name} on {trial.cell.placement.name}"] = None
            if not is_added:
                self._skip(number)
            return None
        if is_done and not is_added:
            self._skip(number)
        elif not is_added:
            with self.lock:
                self.forecast.end(number, time.monotonic() - begun_s)
        if not trial.arms:
            return None
        if phase.checkpoints:
            self._drop_checkpoint(trial)
        return trial

    def _without_broken(self, trial: Trial, turn: Turn) -> Trial:
        """Return a trial without the arms that have crashed or hung in its cell, which get a row that says so."""
        whole = []
        for arm in trial.arms:
            known = self.broken.get((trial.cell, arm.name))
            if known is None:
                whole.append(arm)
                continue
            status, why = known
            alone = replace(trial, arms=(arm,))
            turn.begin(alone)
            turn.store(alone, [TrialResult(precision=arm.name, status=status, detail=why, started=now())])
        return replace(trial, arms=tuple(whole))

    def _drop_checkpoint(self, trial: Trial) -> None:
        """Remove a training's checkpoint, also that of a run which was killed, unless it will be resumed from it."""
        if not {*FAILURES} & {*self.known.statuses.get(trial.id, {}).values()}:
            path = self.store.folder / trial.checkpoint
            path.unlink(missing_ok=True)
            with suppress(OSError):  # others are still there, or there was none
                path.parent.rmdir()


@dataclass(frozen=True, slots=True)
class Turn:
    """A trial's turn in a run: what its phase measures it with (``Phase.conduct``)."""

    runner: Runner
    place: tuple[int, int]
    """Its number, and of how many."""
    device: Device

    @property
    def plan(self) -> Plan:
        """The plan that the trial is of."""
        return self.runner.plan

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
                left_s = min(math.inf if left_s is None else left_s, runner.deadline_s - time.monotonic())
            runner.display.begin(trial, *self.place, left_s)

    def attempt(self, trial: Trial) -> Attempt:
        """Run one process of a trial, of which nothing is stored yet.

        Raises:
            OutOfTimeError: the deadline has passed.
        """
        self.begin(trial)
        take, keep_log = partial(self._take, trial), partial(self._keep_log, trial)
        return attempt(trial, self.device, self.runner.launcher, take, keep_log)

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
        if not isinstance(message, Progress):
            return
        if runner.launcher.overlapping and message.text:
            message = replace(message, text=f"{trial.cell.placement.name}: {message.text}")
        with runner.lock:
            samples = runner.sampler.drain()
            runner.store.add(samples)
            runner.display.progress(message, samples)

    def keep(self, attempt: Attempt) -> None:
        """Store what a process sent; an arm that crashed or hung is not tried again in its cell."""
        trial = attempt.trial
        before = self.statuses(replace(trial, replicate=trial.replicate - 1))  # of two that read an arm's memory
        has_fitted = PHASES[trial.phase].finds_unfit and {*before.values()} & {*MEASURED}
        result = attempt.results[-1]
        if attempt.is_broken and not has_fitted and result.status not in MEASURED:
            reason = f"not tried again: in {trial.id}, {result.detail}"
            self.runner.broken[trial.cell, trial.arms[0].name] = result.status, reason
        self.store(trial, attempt.results, attempt.records)

    def discard(self, attempt: Attempt) -> None:
        """Show how a process ended, of which nothing is stored."""
        with self.runner.lock:
            self.runner.display.end(attempt.trial, with_figures(attempt.trial, attempt.results, attempt.records))

    def store(self, trial: Trial, results: Sequence[TrialResult], records: Sequence[Message] = ()) -> None:
        """Store a trial's results, and show them."""
        runner = self.runner
        with runner.lock:
            runner.store.add_results(trial, self.device, results, [*runner.sampler.drain(), *records])
            results = with_figures(trial, results, records)
            runner.display.end(trial, results)
        runner.known.statuses[trial.id] = {result.precision: result.status for result in results}
        if "oom" not in runner.known.statuses[trial.id].values():
            for alone in trial.apart():
                runner.known.statuses.pop(alone.id, None)
        rows = {result.precision: result.row for result in results if result.status in MEASURED}
        runner.measured[trial.id] = {name: row for name, row in rows.items() if row is not None}


def once(trial: Trial, turn: Turn) -> None:
    """Measure a trial in one process, where its phase does not say otherwise."""
    if not turn.is_done(trial):
        turn.keep(turn.attempt(trial))
