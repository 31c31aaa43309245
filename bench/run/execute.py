"""Run a plan in its folder, trial by trial, storing each as it ends."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any

import bench
from bench.cli.display import Display, open_display, show_remaining
from bench.launch import Ending, Launcher, run_concurrently
from bench.measure.sampler import Gpus, Sampler
from bench.phases.speed import Speed
from bench.planning import suite_registry
from bench.planning.batch_sizes import Largest, at_any_size, common_multiple
from bench.planning.plan import REPORT_S, Forecast, Plan, memory_trials, refusal_reason, resolve
from bench.results.records import MEASURED, Device, Environment, Message, Progress, Status, TrialResult
from bench.results.run_json import planned as describe_planned
from bench.results.run_json import read_run
from bench.results.store import LOG, Store, StoredResults, stored_results
from bench.run.figures import stored_speeds, with_figures
from bench.run.folder import describe_request, earlier_start, locked
from bench.run.prepare import PreparedRun
from bench.spec.phases import PHASES, SEARCHES
from bench.spec.trial import Cell, Placement, Protocol, Trial
from bench.stats import (
    ASSUMED_NOISE,
    EVIDENCE,
    STOPPING,
    Interval,
    aa_noise,
    disturbed,
    over_processes,
    verdict,
)

SAMPLE_PERIOD_S = 0.2
LONGEST = 1000
"""Most characters of a row's detail: the beginning and the end of an error say what it is."""
ENDINGS: dict[str, Status] = {"oom": "oom", "timeout": "timeout", "unsupported": "unsupported"}
BROKEN = ("died", "timeout")
"""Endings after which an arm is not tried again in its cell: it would crash again, or hang for as long again."""
FAILED = (*BROKEN, "error")
"""Endings that are an arm's fault: of several arms, whose is shown by trying each alone."""

Processes = tuple[Sequence[Interval], Sequence[bool]]
"""The log-speedup of an arm in each process, and which of these were disturbed."""


class OutOfTimeError(Exception):
    """The time of ``--within`` is up, or a trial should take longer than what is left of it."""


@dataclass(slots=True)
class Execution:
    """A run in progress."""

    store: Store
    devices: dict[str, Device]
    launcher: Launcher
    sampler: Sampler
    display: Display
    known: StoredResults = field(default_factory=StoredResults)
    """The results so far."""
    forecast: Forecast = field(default_factory=lambda: Forecast(Plan(trials=(), seconds=())))
    """How long the rest of the plan takes."""
    speeds: dict[str, dict[str, Speed]] = field(default_factory=dict)
    """By the id of a trial the speed of each arm, which decides on further processes."""
    broken: dict[tuple[Cell, str], tuple[Status, str]] = field(default_factory=dict)
    """The arms that crashed or hung in a cell, with the status and the reason of their further rows."""
    searches: list[Trial] = field(default_factory=list)
    """The plan's searches for the largest batch, but those that a device refuses."""
    deadline_s: float = math.inf
    """When measuring ends, on the monotonic clock."""
    undecided: dict[str, None] = field(default_factory=dict)
    """What the deadline left open, such as ``speed of mlp on cpu``."""
    _reached: int = 0
    """How many trials the run has come to, those included that it need not measure."""
    _total: int = 0
    """How many it comes to as far as is known: the plan's, and the processes that were added."""
    _lock: RLock = field(default_factory=RLock)
    """Guards the store and the display where trials of different accelerators run concurrently, in threads."""

    def run(self, plan: Plan) -> bool:
        """Run every unfinished trial; return whether something was measured, and nothing failed or hung."""
        self.known, self.forecast = stored_results(self.store.folder), Forecast(plan)
        self.speeds = stored_speeds(self.store.folder)
        self._reached, self._total = 0, len(plan.trials)
        fits = (trial for trial in plan.trials if trial.phase in SEARCHES)
        self.searches = [each for each in fits if not (each.unfit or refusal_reason(each, self._device(each)))]
        pools: dict[str, set[Placement]] = {}  # placements on the same accelerators take turns
        for placement in dict.fromkeys(trial.cell.placement for trial in plan.trials):
            pools.setdefault(placement.members[0] if self.launcher.overlapping else "", set()).add(placement)
        if self.launcher.overlapping:
            run_concurrently([partial(self._run_on, plan, pool) for pool in pools.values()], self.launcher.cancel)
        else:
            self._run_on(plan, pools.get("", set()))
        statuses = {status for trial in self.known.statuses.values() for status in trial.values()}
        return not statuses & {"timeout", "failed"} and bool(statuses & set(MEASURED))

    def _run_on(self, plan: Plan, placements: set[Placement]) -> None:
        """Run the trials of some placements, one after the other; then further processes of undecided cells."""
        fits = memory_trials(plan)
        cells = deque[tuple[int, Trial]]()
        for number, planned in enumerate(plan.trials):
            if planned.cell.placement not in placements:
                continue
            place = self._next_place()
            trial = resolve(planned, fits, self.known.statuses)
            if trial is None or self.known.is_done(trial):
                self.forecast.skip(number)
                if trial is None:
                    continue
                if PHASES[trial.phase].checkpoints:
                    self._drop_checkpoint(trial)  # a run that was killed after storing the result left it
                measured = self._measure(trial, place)
            else:
                begun = time.monotonic()
                try:
                    measured = self._measure_in_time(number, trial, place)
                except OutOfTimeError:
                    self.forecast.skip(number)
                    continue
                self.forecast.end(number, time.monotonic() - begun)
            if measured is not None and self._is_last(measured):
                cells.append((number, measured))
        self._run_more(cells)

    def _measure_in_time(self, number: int, trial: Trial, place: tuple[int, int]) -> Trial | None:
        """Measure a trial, which should take as long as the plan's of this number.

        Raises:
            OutOfTimeError: it should end after the deadline, or was ended there; nothing of it is stored.
        """
        try:
            if time.monotonic() + self.forecast.trial_s(number) > self.deadline_s:
                raise OutOfTimeError
            return self._measure(trial, place)
        except OutOfTimeError:
            cell, is_added = trial.cell, trial.replicate >= trial.protocol.replicates
            more = "further processes for the " if is_added else ""
            self.undecided[f"{more}{trial.phase} of {cell.suite.name} on {cell.placement.name}"] = None
            raise

    def _next_place(self, added: int = 0) -> tuple[int, int]:
        """Return the number of the next trial, and of how many, after more than the plan's were added."""
        with self._lock:
            self._reached += 1
            self._total += added
            return self._reached, self._total

    def _measure(self, trial: Trial, place: tuple[int, int]) -> Trial | None:
        """Measure what is not done of a trial: its arms together, or apart if they cannot be measured together.

        Returns:
            The trial without the arms that have crashed or hung in its cell, which get a row that says so; None if all
            have.
        """
        if not self.known.is_done(trial):
            for arm in trial.arms:
                if (known := self.broken.get((trial.cell, arm.name))) is not None:
                    alone = replace(trial, arms=(arm,))
                    self._begin(alone, place)
                    status, why = known
                    self._keep(alone, [], [TrialResult(precision=arm.name, status=status, detail=why, started=now())])
            arms = tuple(arm for arm in trial.arms if (trial.cell, arm.name) not in self.broken)
            if not arms:
                return None
            trial = replace(trial, arms=arms)
        if not self.known.is_done(trial):
            self._begin(trial, place)
            failed = self._run_trial(trial)
            if failed is not None:
                self._run_apart(trial, place, failed)
        if len(trial.arms) > 1 and "oom" in self.known.statuses.get(trial.id, {}).values():
            self._run_apart(trial, place, None)
        return trial

    def _is_last(self, trial: Trial) -> bool:
        """Return whether a trial is the last planned process of a cell whose arms fit together."""
        is_last = PHASES[trial.phase].until_clear and trial.replicate == trial.protocol.replicates - 1
        return is_last and "oom" not in self.known.statuses.get(trial.id, {}).values()

    def _run_more(self, cells: deque[tuple[int, Trial]]) -> None:
        """Measure cells in further processes, by turns, until each has enough.

        Args:
            cells: the last process of each, with the number of its planned one.
        """
        while cells:
            number, trial = cells.popleft()
            if self._enough(trial):
                continue
            following = replace(trial, replicate=trial.replicate + 1)
            with suppress(OutOfTimeError):
                measured = self._measure_in_time(number, following, self._next_place(added=1))
                if measured is not None:
                    cells.append((number, measured))

    def _enough(self, last: Trial) -> bool:
        """Say whether the processes of a cell up to this one are enough."""
        each = [self._speeds(last, replicate) for replicate in range(last.replicate + 1)]
        names = dict.fromkeys(name for speeds in each for name in speeds)
        arms = [[speeds[name] for speeds in each if name in speeds] for name in names]
        timed_s = max((sum(speed.timed_s for speed in arm) for arm in arms), default=0.0)
        floor = replace(last, phase="floor", ablation=False)
        floors = [replace(floor, replicate=number) for number in range(last.protocol.most_replicates)]
        noise = aa_noise(*log_speedups([speed for aa in floors for speed in self._speeds(aa, aa.replicate).values()]))
        logs = [log_speedups(arm) for arm in arms if any(speed.log_gain() for speed in arm)]
        return not logs or enough(last.protocol, len(each), logs, timed_s, noise)

    def _speeds(self, trial: Trial, replicate: int) -> dict[str, Speed]:
        """Return the speeds of a trial's arms in a process, whatever other arms that measured."""
        speeds = self.speeds.get(replace(trial, replicate=replicate).id, {})
        return {name: speed for name, speed in speeds.items() if name in trial.precisions}

    def _device(self, trial: Trial) -> Device:
        return self.devices[trial.cell.placement.name]

    def _begin(self, trial: Trial, place: tuple[int, int]) -> None:
        with self._lock:
            left_s = self.forecast.left_s()
            if self.deadline_s < math.inf:
                left_s = min(math.inf if left_s is None else left_s, self.deadline_s - time.monotonic())
            self.display.begin(trial, *place, left_s)

    def _run_apart(self, trial: Trial, place: tuple[int, int], failed: Ending | None) -> None:
        """Measure arms that cannot be measured together, each in its own process.

        ``failed`` is how they ended together, which is not stored; None if they did not fit together, which is.
        """
        measured = self.known.final(trial) if failed is not None else set()
        missing = [
            alone for alone in trial.apart() if not (self.known.is_done(alone) or alone.arms[0].name in measured)
        ]
        arms = "steps" if trial.ablation else "precisions"
        if missing:
            why = "do not fit together" if failed is None else "failed together"
            self.display.note(f"{trial.id}: the {arms} {why}; each is measured on its own, unpaired")
        for alone in missing:
            self._begin(alone, place)
            self._run_trial(alone, f"measured alone: together, {failed.text}" if failed is not None else "")

    def _run_trial(self, trial: Trial, note: str = "") -> Ending | None:
        """Run one trial and store what it sent; the detail of a measured row begins with a ``note``.

        Returns:
            How it ended if several arms failed together, of which nothing is stored; else None.
        """
        search, device = PHASES[trial.phase].search, self._device(trial)
        if search is not None and not trial.unfit and refusal_reason(trial, device) is None:
            multiple = self._common_multiple(trial.cell)
            size, result = search(trial, device, lambda attempt: self._run_process(attempt)[1][0], multiple)
            trial = replace(trial, cell=replace(trial.cell, batch_size=size))
            records, results = list[Message](), [result]
        else:
            records, results, ending = self._run_process(trial)
            if ending.kind in FAILED and len(trial.arms) > 1:
                with self._lock:
                    self.display.end(trial, with_figures(trial, results, records))
                return replace(ending, text=results[-1].detail)
            first = replace(trial, replicate=trial.replicate - 1)  # of two processes that read its memory
            fits = trial.phase == "memory" and {*self.known.statuses.get(first.id, {}).values()} & {*MEASURED}
            if ending.kind in BROKEN and not fits:
                self._give_up(trial, results[-1])
            for number, result in enumerate(results):
                if note and result.status in MEASURED:
                    results[number] = replace(result, detail="; ".join(filter(None, (note, result.detail))))
        self._keep(trial, records, results)
        return None

    def _common_multiple(self, cell: Cell) -> int:
        """Return what batches are multiples of for all that is compared in a cell to be trained at each other's."""
        names = [trial.precisions[0] for trial in self.searches if trial.cell == cell]
        return common_multiple(names, suite_registry.load(cell.suite).data.tokens_per_sample or 1)

    def _give_up(self, trial: Trial, result: TrialResult) -> None:
        """Remember not to try a trial's only arm again in its cell."""
        reason = f"not tried again: in {trial.id}, {result.detail}"
        self.broken[trial.cell, trial.arms[0].name] = result.status, reason

    def _run_process(self, trial: Trial) -> tuple[list[Message], list[TrialResult], Ending]:
        """Run one trial's process; return the records that it sent, a result for each arm, and how it ended."""
        records: list[Message] = []

        def take(message: Message) -> None:
            if time.monotonic() > self.deadline_s:
                self.display.note(f"{trial.id}: ended by --within; --resume measures it")
                raise OutOfTimeError
            if isinstance(message, Progress):
                self._show(trial, message)
            else:
                records.append(message)

        started, device = now(), self._device(trial)
        if why := refusal_reason(trial, device):
            ending = Ending(kind="unsupported", text=why)
        elif trial.unfit:
            ending = Ending(kind="oom", text=trial.unfit)
        else:
            for _attempt in (1, 2):
                records.clear()
                ending = self.launcher.run(trial, device, take)
                if ending.kind != "lost":
                    break
        log = self._write_log(trial, ending)
        ending = replace(ending, text=LOG.join([legible(ending.text), *([str(log)] if log else [])]))
        sent = [replace(each, detail=legible(each.detail)) for each in records if isinstance(each, TrialResult)]
        return records, [*sent, *missing_results(trial, sent, ending, started)], ending

    def _write_log(self, trial: Trial, ending: Ending) -> Path | None:
        """Keep all that a process which failed has printed; return where within the run's folder."""
        if ending.kind not in (*FAILED, "lost", "import") or not ending.log:
            return None
        path = self.store.folder / trial.log
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_text(ending.log, errors="backslashreplace")
        except OSError as error:  # on a full disk it is often why the trial failed, and so would the next
            raise self.store.lost(error) from error
        return trial.log

    def _keep(self, trial: Trial, records: list[Message], results: list[TrialResult]) -> None:
        """Store what a trial sent, and show how it ended."""
        with self._lock:
            self.store.add_results(trial, self._device(trial), results, [*self.sampler.drain(), *records])
            results = with_figures(trial, results, records)
            self.display.end(trial, results)
        self.known.statuses[trial.id] = {result.precision: result.status for result in results}
        if "oom" not in self.known.statuses[trial.id].values():
            for alone in trial.apart():
                self.known.statuses.pop(alone.id, None)
        measured = {result.precision: result.row for result in results if result.status in MEASURED}
        timed = {name: row for name, row in measured.items() if isinstance(row, Speed) and row.step_ms is not None}
        self.speeds[trial.id] = timed
        if PHASES[trial.phase].checkpoints:
            self._drop_checkpoint(trial)

    def largest(self, plan: Plan) -> Largest:
        """Return the largest batches found by a plan's searches, before a resumption too."""
        stored = stored_results(self.store.folder)
        largest = {}
        for trial in plan.trials:
            arm = trial.precisions[0]
            if trial.phase in SEARCHES and stored.statuses.get(trial.id, {}).get(arm) == "ok":
                largest[at_any_size(trial.cell), arm] = stored.batch_sizes[trial.id]
        return largest

    def _drop_checkpoint(self, trial: Trial) -> None:
        """Remove a training's checkpoint, unless the trial will be resumed from it."""
        if not {"timeout", "failed"} & set(self.known.statuses[trial.id].values()):
            path = self.store.folder / trial.checkpoint
            path.unlink(missing_ok=True)
            with suppress(OSError):  # others are still there, or there was none
                path.parent.rmdir()

    def _show(self, trial: Trial, progress: Progress) -> None:
        if self.launcher.overlapping and progress.text:
            progress = replace(progress, text=f"{trial.cell.placement.name}: {progress.text}")
        with self._lock:
            samples = self.sampler.drain()
            self.store.add(samples)
            self.display.progress(progress, samples)


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
            store = stack.enter_context(Store(folder))
            if store.dropped:
                rows = ", ".join(f"{count} of {name}" for name, count in store.dropped.items())
                display.note(f"Rows of trials that did not end were dropped: {rows}.")
            store.write_run(run)  # first, so that whatever happens --resume finds a run
            sampler = stack.enter_context(Sampler(gpus, SAMPLE_PERIOD_S))
            launcher.on_start = sampler.own
            launcher.workspace = folder.resolve()
            devices = {device.placement: device for device in environment.devices}
            execution = Execution(
                store=store,
                devices=devices,
                launcher=launcher,
                sampler=sampler,
                display=display,
                deadline_s=deadline_s,
            )
            try:
                if prepared.replan is None:
                    fine = execution.run(prepared.plan)
                else:  # the searches for the largest batches first, then the whole plan at them
                    searched = execution.run(prepared.plan.only(lambda trial: trial.phase in SEARCHES))
                    plan = prepared.replan(execution.largest(prepared.plan))
                    run["planned"] = [describe_planned(trial) for trial in plan.trials]
                    store.write_run(run)
                    display.note(f"The largest batches are known: {len(plan.trials)} trials at them and at others.")
                    fine = execution.run(plan) and searched
                store.add(sampler.stop())
                end(None if execution.undecided else now(), execution.undecided)
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


def now() -> str:
    """Return the time in UTC, as rows have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def legible(text: str) -> str:
    """Return an error's text for a row: as UTF-8, which not every file name is; without its middle if it is long."""
    text = text.encode(errors="backslashreplace").decode()
    if len(text) <= LONGEST:
        return text
    head, tail = LONGEST * 2 // 5, LONGEST // 2
    return f"{text[:head]} … ({len(text) - head - tail:,} characters left out) … {text[-tail:]}"


def missing_results(trial: Trial, results: Sequence[TrialResult], ending: Ending, started: str) -> list[TrialResult]:
    """Return a row for each arm without a result."""
    answered = {result.precision for result in results}
    status = ENDINGS.get(ending.kind, "failed")
    detail = ending.text or "the process sent no result"
    if status == "oom" and len(trial.arms) > 1:
        detail = f"{', '.join(trial.precisions)} together: {detail}"
    return [
        TrialResult(precision=arm.name, status=status, detail=detail, started=started)
        for arm in trial.arms
        if arm.name not in answered
    ]


def enough(
    protocol: Protocol, count: int, arms: Sequence[Processes], timed_s: float, noise: float | None = None
) -> bool:
    """Say whether the processes that have ended answer the question, or have used up what they may.

    The question is answered when each arm's interval over the processes is as narrow as ``--target-ci`` asks; where
    nothing was asked, when each arm is faster or slower than the baseline, or the same. Processes that do not count are
    replaced by others.

    Args:
        protocol: what was asked, and what may be spent.
        count: processes that have ended, measured or not.
        arms: for each arm but the baseline, its log-speedup in each process that measured it, and which of these were
            disturbed; an arm that half of them or more did not measure is not waited for.
        timed_s: how long an arm has been timed, in all processes.
        noise: the A/A noise as a share; ``ASSUMED_NOISE`` where it is unknown.
    """
    if count < protocol.replicates:
        return False
    if count >= protocol.most_replicates or timed_s >= protocol.time_budget_s:
        return True
    noise = ASSUMED_NOISE if noise is None else noise
    return all(_answered(arm, protocol, noise) for arm in arms if 2 * len(arm[0]) > count)


def log_speedups(speeds: Sequence[Speed]) -> Processes:
    """Return the log-speedup of an arm in each process that has one, and which of these were disturbed."""
    measures = {name: [getattr(speed, name) for speed in speeds] for name in EVIDENCE}  # None becomes NaN
    evidence = disturbed([speed.disturbance for speed in speeds], measures)
    processes, is_disturbed = [], []
    for speed, is_evident in zip(speeds, evidence.tolist(), strict=True):
        gain = speed.log_gain()
        if gain is not None:
            processes.append(gain)
            is_disturbed.append(is_evident)
    return processes, is_disturbed


def _answered(arm: Processes, protocol: Protocol, noise: float) -> bool:
    reported = over_processes(*arm)
    if reported.n < protocol.replicates or reported.half_width is None:
        return False
    if protocol.target_ci is not None:
        return math.expm1(reported.half_width) <= protocol.target_ci  # as reports say it
    return verdict(reported.at(STOPPING), math.log1p(noise)) != "INCONCLUSIVE"
