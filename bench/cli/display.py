"""Progress of a run: a live display in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from bench.planning.estimate import REPORT_S
from bench.planning.plan import Plan
from bench.results.records import MEASURED, Environment, Progress, Sample, TrialResult
from bench.spec.phases import PHASES, SEARCHES
from bench.spec.request import Request
from bench.spec.text import plain, print_plain
from bench.spec.trial import Trial

# The least seconds between two drawings: each takes time from a CPU that may be measured.
REDRAW_S = 0.5


class Display:
    """Shows a run as plain lines: one when a trial ends."""

    def __init__(self) -> None:
        self._running: dict[str, str] = {}
        """The number and the id of each running trial, by its placement."""
        self._end_s: float | None = None
        """When the run should end; None is unknown."""

    def begin(
        self,
        trial: Trial,
        number: int,
        total: int,
        left_s: float | None = None,
    ) -> None:
        """Show that a trial begins, and for how many seconds the run goes on; None is unknown."""
        self._end_s = None if left_s is None else time.monotonic() + left_s
        self._running[trial.cell.placement.name] = f"[{number}/{total}] {trial.id}"

    def progress(self, progress: Progress, samples: Sequence[Sample]) -> None:
        """Show progress and the newest readings of the GPU; a log has results only."""

    def end(self, trial: Trial, results: Sequence[TrialResult]) -> None:
        """Show a trial's results."""
        name = self._running.pop(trial.cell.placement.name)
        self.note(f"{name}: {describe_results(trial.phase, results)}")

    def note(self, text: str) -> None:
        """Show a line that stays."""
        print_plain(text)

    def close(self) -> None:
        """Restore the terminal."""


class LiveDisplay(Display):
    """Shows a bar below the lines: running trials, progress, what GPUs do, and the time left."""

    def __init__(self) -> None:
        # Here, because a log needs neither.
        from rich import progress
        from rich.console import Console

        super().__init__()
        self._text = ""
        self._drawn_s = 0.0
        self._gpus: dict[str, str] = {}
        """The last readings of each GPU."""
        self._bars = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=16),
            console=Console(),
            auto_refresh=False,  # a thread that draws would take turns with what is measured
            transient=True,
        )
        self._bar = self._bars.add_task("starting", total=1.0)
        self._bars.start()

    def begin(
        self,
        trial: Trial,
        number: int,
        total: int,
        left_s: float | None = None,
    ) -> None:
        """Show the trial's name."""
        super().begin(trial, number, total, left_s)
        self._draw("starting", 0.0)

    def progress(self, progress: Progress, samples: Sequence[Sample]) -> None:
        """Redraw, at most every ``REDRAW_S``."""
        for sample in samples:
            self._gpus[sample.placement] = describe_gpu(sample)
        if time.monotonic() - self._drawn_s >= REDRAW_S:
            self._draw(progress.text, progress.done)

    def close(self) -> None:
        """Remove the bar."""
        self._bars.stop()

    def note(self, text: str) -> None:
        """Show a line above the bar."""
        # Square brackets are no markup of rich, and numbers are not coloured.
        self._bars.console.print(plain(text), markup=False, highlight=False)

    def _draw(self, text: str, done: float | None) -> None:
        self._drawn_s = time.monotonic()
        self._text = text or self._text  # a process that only says that it runs has none
        lines = [*self._running.values(), self._text, *self._gpus.values()]
        if self._end_s is not None:
            left_s = max(0.0, self._end_s - self._drawn_s)
            lines.append(f"about {_time(left_s)} left in all")
        self._bars.update(self._bar, description=plain("\n".join(lines)), completed=done)
        self._bars.refresh()


def open_display() -> Display:
    """Return the display for a terminal, or for a log."""
    if sys.stdout.isatty():
        return LiveDisplay()
    return Display()


def describe_results(phase: str, results: Sequence[TrialResult]) -> str:
    """Return the results of a trial of a phase in one line."""
    describe = PHASES[phase].describe
    texts = []
    for result in results:
        if result.status in MEASURED and result.row is not None and describe is not None:
            text = describe(result)
        else:
            text = f"{result.arm} {result.status}"
            if result.detail:
                text += f": {result.detail}"
        texts.append(text)
    return "; ".join(texts)


def describe_gpu(sample: Sample) -> str:
    """Return what a GPU's sensors say; what is unknown is left out."""
    parts = [f"GPU {sample.placement}"]
    if sample.utilization_pct is not None:
        parts.append(f"{sample.utilization_pct:.0f} %")
    if sample.temperature_c is not None:
        parts.append(f"{sample.temperature_c:.0f}°C")
    if sample.power_w is not None:
        parts.append(f"{sample.power_w:.0f} W")
    return ", ".join(parts)


def show_plan(
    plan: Plan,
    left: Plan,
    environment: Environment,
    warnings: Sequence[str],
    request: Request,
) -> None:
    """Print what is going to run, where, and how long it may take.

    Args:
        plan: of the whole run.
        left: what is left of a run that goes on; else the same plan.
        environment: the machine, with the devices to run on.
        warnings: printed before the plan.
        request: what was asked.
    """
    for device in environment.devices:
        where = device.placement
        if where.isdigit():
            where = f"GPU {where}"
        print_plain(f"{where}: {device.name} ({device.architecture}); torch {environment.torch}")
    if request.gpus is None and request.on is None:
        print_plain(
            "Without --gpus: every GPU (--quick: one of each model), or the CPU where there is "
            "none."
        )
    for warning in warnings:
        print_plain(f"Warning: {warning}")
    groups: dict[str, list[Trial]] = {}
    for trial in plan.trials:
        where = f"{trial.cell.suite.name} on {trial.cell.placement.name}"
        groups.setdefault(where, []).append(trial)
    for where, trials in groups.items():
        print_plain(f"{where}: {_describe_group(trials)}")
    line = f"Trials: {_duration(plan)} in all"
    if len(left.trials) < len(plan.trials):
        line += f"; left: {_duration(left)}"
    if request.within_s is not None:
        line += f"; --within ends it in {_time(request.within_s)}, report included"
    print_plain(line)


def _describe_group(trials: Sequence[Trial]) -> str:
    """Return the arms, batch sizes and epochs of a suite's trials on one device."""
    arms: list[str] = []
    sizes = []
    training = ""
    for trial in trials:
        arms += trial.arm_names
        data = trial.cell.data
        if trial.phase in SEARCHES:
            sizes.append("max")
        elif data.kind != "script":  # a script has its own, which nobody here knows
            sizes.append(str(trial.cell.batch_size))
        if trial.phase == "train":
            source = str(data)
            if data.kind == "suite":
                source = "the suite's own batches"
            training = f"; trained on {source}, epochs: {trial.epochs}"
    text = _each_once(arms)
    if sizes:
        text += f"; batch {_each_once(sizes)}"
    return text + training


def _each_once(words: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def _duration(plan: Plan) -> str:
    """Return the number of a plan's trials and their time, with the report's."""
    count = str(len(plan.trials))
    total_s = REPORT_S
    is_known = True
    for trial in plan.trials:
        may_follow = PHASES[trial.phase].is_enough is not None
        if may_follow and trial.protocol.most_replicates > trial.protocol.replicates:
            count = f"at least {len(plan.trials)}"
        if trial.estimate_s is None:  # the sum of the others would promise too little
            is_known = False
        else:
            total_s += trial.estimate_s
    return f"{count}, about {_time(total_s)}" if is_known else f"{count}, an unknown time"


def _time(seconds: float) -> str:
    """Return a time, such as 85 s, 2.5 min, 40 min or 1.7 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.2g} min"
    return f"{seconds / 3600:,.1f} h"
