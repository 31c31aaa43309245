"""The state of a run in progress.

A phase measures its trials with it: it runs a process, stores and shows what that sent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock

from bench.cli.display import Display
from bench.launch import Launcher
from bench.measure.sampler import Sampler
from bench.phases.speed import Speed
from bench.planning.abilities import refusal_reason
from bench.planning.plan import Plan
from bench.results.endings import Ending
from bench.results.records import (
    MEASURED,
    Detail,
    Device,
    Message,
    Progress,
    Status,
    TrialResult,
    utc_now,
)
from bench.results.store import Store, StoredResults, stored_results
from bench.run.attempt import Attempt, completed
from bench.run.derived_rows import speeds_of, stored_speeds, with_derived
from bench.run.forecast import Forecast
from bench.spec.phases import PHASES
from bench.spec.trial import Cell, Trial


class OutOfTimeError(Exception):
    """The time of ``--within`` is up, or a trial should take longer than what is left of it."""


@dataclass(slots=True)
class Session:
    """A run in progress. A phase that leads its trials itself gets it (``Phase.conduct``)."""

    plan: Plan
    store: Store
    devices: Mapping[str, Device]
    """By the names of placements."""
    launcher: Launcher
    sampler: Sampler
    display: Display
    deadline_s: float = math.inf
    """When measuring ends, on the monotonic clock."""
    forecast: Forecast = field(init=False)
    known: StoredResults = field(init=False)
    """The results so far."""
    speeds: dict[str, dict[str, Speed]] = field(init=False)
    """Of trials whose rows are speeds, by their ids and the names of the arms that were
    measured."""
    broken: dict[tuple[Cell, str], tuple[Status, str]] = field(default_factory=dict)
    """The arms that crashed or hung in a cell, with the status and the reason of their further
    rows."""
    undecided: dict[str, None] = field(default_factory=dict)
    """What the deadline left open, such as ``speed of mlp on cpu``."""
    numbers: dict[str, int] = field(default_factory=dict)
    """The number of the trial that runs on each placement."""
    total: int = field(init=False)
    """How many trials there are as far as is known: the plan's, and the processes that were
    added."""
    lock: RLock = field(default_factory=RLock)
    """Guards the store, the display and the forecast where trials of different accelerators run
    concurrently."""

    def __post_init__(self) -> None:
        self.follow(self.plan)

    def follow(self, plan: Plan) -> None:
        """Go on with a plan, and the results that its folder has."""
        self.plan = plan
        self.forecast = Forecast(plan)
        self.total = len(plan.trials)
        self.known = stored_results(self.store.folder)
        self.speeds = stored_speeds(self.store.folder)

    def statuses(self, trial: Trial) -> Mapping[str, Status]:
        """Return the statuses of a trial's arms, by name; none of a trial that has not ended."""
        return self.known.statuses.get(trial.id, {})

    def note(self, text: str) -> None:
        """Show a sentence."""
        with self.lock:
            self.display.note(text)

    def begin(self, trial: Trial) -> None:
        """Show that a trial begins, and how long the run goes on."""
        with self.lock:
            left_s = self.forecast.left_s()
            if self.deadline_s < math.inf:
                # The run ends when --within is over, whatever is left then.
                until_deadline_s = self.deadline_s - time.monotonic()
                left_s = until_deadline_s if left_s is None else min(left_s, until_deadline_s)
            number = self.numbers[trial.cell.placement.name]
            self.display.begin(trial, number, self.total, left_s)

    def attempt(self, trial: Trial) -> Attempt:
        """Run one process of a trial, unless it is known beforehand that none can measure it.

        Nothing is stored yet.

        Raises:
            OutOfTimeError: the deadline has passed.
        """
        self.begin(trial)
        device = self.devices[trial.cell.placement.name]
        records: list[TrialResult | Detail] = []

        def take(message: Message) -> None:
            # A launcher passes on empty messages while a worker is silent, so this is asked often.
            if time.monotonic() > self.deadline_s:
                self.note(f"{trial.id}: ended by --within; --resume measures it")
                raise OutOfTimeError
            if isinstance(message, Progress):
                self._show(message)
            else:
                records.append(message)

        started = utc_now()
        refusal = refusal_reason(trial, device)
        if refusal is not None:
            ending = Ending(kind="unsupported", text=refusal)
        elif trial.unfit:
            ending = Ending(kind="oom", text=trial.unfit)
        else:
            ending = self.launcher.run(trial, device, take)
            if ending.kind == "lost":  # by no fault of its own: once more
                records.clear()
                ending = self.launcher.run(trial, device, take)
        if ending.log:
            self._keep_log(trial, ending.log)
        return completed(trial, records, ending, started)

    def _show(self, progress: Progress) -> None:
        """Show progress, and store what was read of the GPUs meanwhile."""
        with self.lock:
            samples = self.sampler.drain()
            self.store.add(samples)
            self.display.progress(progress, samples)

    def _keep_log(self, trial: Trial, text: str) -> None:
        """Keep what a process that failed has printed in the run's folder."""
        path = self.store.folder / trial.log
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, errors="backslashreplace")
        except OSError as error:  # a full disk is often why the trial failed, and so would the next
            raise self.store.lost(error) from error

    def keep(self, attempt: Attempt) -> None:
        """Store what a process sent; an arm that crashed or hung is not tried again in its cell."""
        trial, result = attempt.trial, attempt.results[-1]
        is_lost = attempt.is_broken and result.status not in MEASURED
        if is_lost and not self._was_measured_before(trial):
            reason = f"not tried again: in {trial.id}, {result.detail}"
            self.broken[trial.cell, result.arm] = result.status, reason
        self.store_results(trial, attempt.results, attempt.details)

    def _was_measured_before(self, trial: Trial) -> bool:
        """Return whether the process before ran: of two that read an arm's memory one is enough."""
        if not PHASES[trial.phase].finds_unfit:
            return False
        before = self.statuses(replace(trial, replicate=trial.replicate - 1))
        return not {*before.values()}.isdisjoint(MEASURED)

    def store_results(
        self, trial: Trial, results: Sequence[TrialResult], details: Sequence[Detail] = ()
    ) -> None:
        """Store a trial's results, and show them."""
        device = self.devices[trial.cell.placement.name]
        with self.lock:
            self.store.add(self.sampler.drain())
            self.store.add_results(trial, device, results, details)
            results = with_derived(trial, results, details)
            self.display.end(trial, results)
        statuses = {result.arm: result.status for result in results}
        self.known.statuses[trial.id] = statuses
        if "oom" not in statuses.values():  # its rows took the place of those of its arms apart
            for alone in trial.apart():
                self.known.statuses.pop(alone.id, None)
                self.speeds.pop(alone.id, None)
        self.speeds[trial.id] = speeds_of(results)
