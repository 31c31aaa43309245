"""Run a plan, trial by trial, storing each as it ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from threading import RLock

from bench.cli.display import Display
from bench.launch.launcher import Ending, Launcher, run_concurrently
from bench.measure.sampler import Sampler
from bench.planning.max_batch import Largest, Search, at_any_size
from bench.planning.plan import Forecast, Plan, memory_trials, refusal_reason, resolve
from bench.results.records import MEASURED, Device, Message, Progress, Speed, Status, TrialResult
from bench.results.store import Store, answers
from bench.spec.phases import LADDER, PHASES
from bench.spec.trial import KnownArm, Placement, Trial

LONGEST = 4000
"""Most characters of a row's detail: the beginning and the end of an error say what it is."""
ENDINGS: dict[str, Status] = {"oom": "oom", "timeout": "timeout", "unsupported": "unsupported"}


@dataclass(slots=True)
class Execution:
    """A run in progress."""

    store: Store
    devices: dict[str, Device]
    launcher: Launcher
    sampler: Sampler
    display: Display
    done: dict[str, dict[str, Status]] = field(default_factory=dict)
    """Config hashes of finished trials, with each precision's status."""
    speeds: dict[str, dict[str, Speed]] = field(default_factory=dict)
    """The speeds measured so far, by the trial's config hash and the precision."""
    forecast: Forecast = field(default_factory=lambda: Forecast(Plan(trials=(), seconds=())))
    """How long the rest of the plan takes."""
    _lock: RLock = field(default_factory=RLock)
    """Guards the store and the display where trials of different accelerators run concurrently, in threads."""

    def run(self, plan: Plan) -> bool:
        """Run every unfinished trial; return whether something was measured, and nothing failed or hung."""
        known = answers(self.store.folder)
        self.done, self.speeds = known.statuses, known.speeds
        self.forecast = Forecast(plan)
        if self.launcher.overlapping:
            pools: dict[str, set[Placement]] = {}  # placements on the same accelerators take turns
            for placement in dict.fromkeys(trial.cell.placement for trial in plan.trials):
                pools.setdefault(placement.members[0], set()).add(placement)
            run_concurrently([partial(self._run_on, plan, pool) for pool in pools.values()], self.launcher.cancel)
        else:
            self._run_on(plan, {trial.cell.placement for trial in plan.trials})
        statuses = {status for trial in self.done.values() for status in trial.values()}
        return not statuses & {"timeout", "failed"} and bool(statuses & set(MEASURED))

    def _run_on(self, plan: Plan, placements: set[Placement]) -> None:
        """Run the trials of some placements, one after the other."""
        fits = memory_trials(plan)
        for number, planned in enumerate(plan.trials):
            if planned.cell.placement not in placements:
                continue
            trial = resolve(planned, fits, self.done)
            is_done = trial is None or self._is_done(trial)
            if is_done:
                self.forecast.skip(number)
            if trial is None:
                continue
            if not is_done:
                begun = time.monotonic()
                self._begin(trial, number + 1, len(plan.trials))
                self._run_trial(trial)
                self.forecast.end(number, time.monotonic() - begun)
            elif trial.phase == "train":
                self._drop_checkpoint(trial)  # a run that was killed after storing the result left it
            if len(trial.arms) > 1 and "oom" in self.done[trial.config].values():
                self._run_apart(trial, number + 1, len(plan.trials))
            elif PHASES[trial.phase].key == "replicate" and trial.replicate == trial.protocol.replicates - 1:
                self._run_more(trial, number + 1, len(plan.trials))

    def _run_more(self, trial: Trial, number: int, total: int) -> None:
        """Measure a cell in further processes, one at a time, until there are enough."""
        while not self._enough(trial):
            trial = replace(trial, replicate=trial.replicate + 1)
            if not self._is_done(trial):
                self._begin(trial, number, total)
                self._run_trial(trial)

    def _is_done(self, trial: Trial) -> bool:
        """Say whether a trial has a row for each of its arms."""
        return len(self.done.get(trial.config, ())) >= len(trial.arms)

    def _enough(self, last: Trial) -> bool:
        """Say whether the processes of a cell up to this one are enough."""
        from bench.planning.processes import enough, log_speedup

        each = [self.speeds.get(replace(last, replicate=number).config, {}) for number in range(last.replicate + 1)]
        names = dict.fromkeys(name for speeds in each for name in speeds)
        arms = [[log_speedup(speeds[name]) for speeds in each if name in speeds] for name in names]
        logs = [[log for log in arm if log is not None] for arm in arms]
        timed_s = max((sum(speeds[name].timed_s for speeds in each if name in speeds) for name in names), default=0.0)
        return not any(logs) or enough(last.protocol, len(each), [arm for arm in logs if arm], timed_s)

    def _known(self, trial: Trial) -> tuple[KnownArm, ...]:
        """Return how the first process of a cell cut its arms' blocks, for one that repeats it."""
        if PHASES[trial.phase].key != "replicate" or trial.replicate == 0:
            return ()
        first = self.speeds.get(replace(trial, replicate=0).config, {})
        return tuple(
            KnownArm(name=name, switch_warmup=speed.switch_warmup_steps, steps=speed.block_steps, step_ms=speed.step_ms)
            for name, speed in first.items()
            if speed.steady and speed.step_ms is not None
        )

    def _begin(self, trial: Trial, number: int, total: int) -> None:
        with self._lock:
            self.display.begin(trial, number, total, self.forecast.left_s())

    def _run_apart(self, trial: Trial, number: int, total: int) -> None:
        """Measure arms that do not fit into memory together, each in its own process."""
        apart = [replace(trial, arms=(arm,)) for arm in trial.arms]
        missing = [alone for alone in apart if not self._is_done(alone)]
        if missing:
            arms = "steps" if trial.phase in LADDER else "precisions"
            self.display.note(f"{trial.id}: the {arms} do not fit together; each is measured on its own, unpaired")
        for alone in missing:
            self._begin(alone, number, total)
            self._run_trial(alone)

    def _run_trial(self, trial: Trial) -> None:
        """Run one trial and store what it sent."""
        device = self.devices[trial.cell.placement.name]
        if trial.phase == "fit" and refusal_reason(trial, device) is None:
            search = Search(trial, device.is_gpu, attempt=lambda one: self._run_process(one, device)[1][0])
            size, result = search.run()
            trial = replace(trial, cell=replace(trial.cell, batch_size=size))
            records, results = list[Message](), [result]
        else:
            records, results = self._run_process(trial, device)
        with self._lock:
            self._keep(trial, device, records, results)

    def _run_process(self, trial: Trial, device: Device) -> tuple[list[Message], list[TrialResult]]:
        """Run one trial's process; return the records that it sent, and a result for each arm."""
        records: list[Message] = []

        def take(message: Message) -> None:
            if isinstance(message, Progress):
                self._show(trial, message)
            else:
                records.append(message)

        started = datetime.now(UTC).isoformat(timespec="seconds")
        if why := refusal_reason(trial, device):
            ending = Ending(kind="unsupported", text=why)
        else:
            ending = self.launcher.run(replace(trial, known=self._known(trial)), device, take)
        sent = [record for record in records if isinstance(record, TrialResult)]
        results = [*sent, *missing_results(trial, sent, ending, started)]
        return records, [replace(result, detail=legible(result.detail)) for result in results]

    def _keep(self, trial: Trial, device: Device, records: list[Message], results: list[TrialResult]) -> None:
        """Store what a trial sent, and show how it ended."""
        self.store.add_results(trial, device, results, [*self.sampler.drain(), *records])
        self.display.end(trial, results)
        self.done[trial.config] = {result.precision: result.status for result in results}
        measured = {one.precision: one.speed for one in results if one.status in MEASURED and one.speed is not None}
        self.speeds[trial.config] = {name: speed for name, speed in measured.items() if speed.step_ms is not None}
        if trial.phase == "train":
            self._drop_checkpoint(trial)

    def largest(self, plan: Plan) -> Largest:
        """Return the largest batches found by a plan's searches, before a resumption too."""
        sizes = answers(self.store.folder).sizes
        searches = [trial for trial in plan.trials if trial.phase == "fit" and trial.config in sizes]
        return {(at_any_size(trial.cell), trial.precisions[0]): sizes[trial.config] for trial in searches}

    def _drop_checkpoint(self, trial: Trial) -> None:
        """Remove a training's checkpoint, unless the trial will be resumed from it."""
        if not {"timeout", "failed"} & set(self.done[trial.config].values()):
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
            self.store.check()
            self.display.progress(progress, samples)


def legible(text: str) -> str:
    """Return an error's text for a row: as UTF-8, which not every file name is; without its middle if it is long."""
    text = text.encode(errors="backslashreplace").decode()
    if len(text) <= LONGEST:
        return text
    head, tail = LONGEST * 2 // 5, LONGEST // 2
    return f"{text[:head]} … ({len(text) - head - tail:,} characters left out) … {text[-tail:]}"


def missing_results(trial: Trial, results: Sequence[TrialResult], ending: Ending, started: str) -> list[TrialResult]:
    """Return a row for each arm without a result."""
    refused = {result.precision for result in results if result.status == "unsupported"}
    arms = trial.arms_by_name(refused)
    answered = {arms[result.precision].added for result in results}
    status = ENDINGS.get(ending.kind, "failed")
    detail = ending.text or "the process sent no result"
    if status == "oom" and len(trial.arms) > 1:
        detail = f"{', '.join(trial.precisions)} together: {detail}"
    return [
        TrialResult(precision=arm.name, status=status, detail=detail, started=started)
        for arm in trial.arms
        if arm.added not in answered
    ]
