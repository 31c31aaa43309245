"""Progress of a run: a live display in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from bench.planning.estimate import REPORT_S
from bench.planning.plan import Plan
from bench.results.records import MEASURED, Device, Environment, Progress, Sample, TrialResult
from bench.results.store import FAILURES, reason_of
from bench.spec.phases import PHASES, SEARCHES
from bench.spec.text import plain, print_plain
from bench.spec.trial import Trial

REDRAW_S = 0.5
"""Drawing takes time from a CPU that may be measured, so it is rare."""


class Display:
    """Shows a run as plain lines: one when a trial ends."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[str, str]] = {}
        """The number and the description of each running trial, by its id."""
        self._end_s: float | None = None
        """When the run should end; None is unknown."""
        self._reasons: set[str] = set()
        """Why trials failed, as far as it was shown."""

    def begin(self, trial: Trial, number: int, total: int, left_s: float | None = None) -> None:
        """Show that a trial begins, and for how many seconds the run goes on; None is unknown."""
        self._end_s = None if left_s is None else time.monotonic() + left_s
        self._running[trial.id] = f"[{number}/{total}]", describe_trial(trial)

    def progress(self, progress: Progress, samples: Sequence[Sample]) -> None:
        """Show progress and the newest readings of the GPU; a log has results only."""

    def end(self, trial: Trial, results: Sequence[TrialResult]) -> None:
        """Show a trial's results; a reason that many share is shown once."""
        shown = []
        for result in results:
            if result.status in FAILURES and reason_of(result.detail) in self._reasons:
                shown.append(replace(result, detail="for the reason given above"))
            else:
                self._reasons.add(reason_of(result.detail))
                shown.append(result)
        bad = any(result.status not in MEASURED for result in results)
        line = describe_results(trial.phase, shown)
        self._print(f"{' '.join(self._running.pop(trial.id))}: {line}", "red" if bad else "")

    def note(self, text: str) -> None:
        """Show a note."""
        self._print(text, "yellow")

    def close(self) -> None:
        """Restore the terminal."""

    def _print(self, text: str, _style: str) -> None:
        print_plain(text)


class LiveDisplay(Display):
    """Shows lines that keep changing below those of the trials that have ended: the trial, the run, and each GPU."""

    def __init__(self, devices: Sequence[Device] = ()) -> None:
        from rich import progress
        from rich.console import Console
        from rich.live import Live

        super().__init__()
        self._boards: dict[str, Device] = {}
        """The device of each GPU; of one that also trains with others, itself."""
        for device in sorted(devices, key=lambda device: -len(device.gpus)):
            self._boards |= dict.fromkeys(device.gpus.values(), device)
        self._readings: dict[str, Sample] = {}
        """The last one of each GPU."""
        self._bars = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=16),
            progress.TextColumn("{task.fields[text]}", markup=False),
            progress.TimeElapsedColumn(),
        )
        self._trial = self._bars.add_task("starting", total=1.0, text="")
        self._run = self._bars.add_task("in all", total=1.0, text="")
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()
        self._start_s = time.monotonic()
        self._drawn_s = 0.0

    def begin(self, trial: Trial, number: int, total: int, left_s: float | None = None) -> None:
        """Show the trial's name."""
        super().begin(trial, number, total, left_s)
        names = list(self._running.values())
        name = " ".join(names[0]) if len(names) == 1 else f"{len(names)} trials running"
        self._bars.reset(self._trial, description=plain(name), text="starting")
        self._draw()

    def progress(self, progress: Progress, samples: Sequence[Sample]) -> None:
        """Redraw, at most every ``REDRAW_S``."""
        self._readings |= {sample.placement: sample for sample in samples}
        if progress.text:
            self._bars.update(self._trial, completed=progress.done or 0.0, text=plain(progress.text))
        if time.monotonic() - self._drawn_s >= REDRAW_S:
            self._draw()

    def close(self) -> None:
        """Remove the live lines."""
        self._live.stop()

    def loads(self) -> list[str]:
        """Return a line for each GPU that is read."""
        readings = sorted(self._readings.items(), key=lambda item: int(item[0]))
        return [describe_gpu(sample, self._boards.get(gpu)) for gpu, sample in readings]

    def _print(self, text: str, style: str) -> None:
        from rich.text import Text

        self._console.print(Text(plain(text), style=style))

    def _draw(self) -> None:
        from rich.console import Group
        from rich.text import Text

        self._drawn_s = time.monotonic()
        if self._end_s is not None:
            left_s, elapsed_s = max(0.0, self._end_s - self._drawn_s), self._drawn_s - self._start_s
            share = elapsed_s / max(elapsed_s + left_s, 1e-9)
            self._bars.update(self._run, completed=share, text=f"about {_time(left_s)} left")
        loads = [Text(plain(f"  {line}"), style="dim", no_wrap=True, overflow="ellipsis") for line in self.loads()]
        self._live.update(Group(self._bars, *loads), refresh=True)


def open_display(devices: Sequence[Device] = ()) -> Display:
    """Return the display for a terminal, or for a log; ``devices`` are those of this machine."""
    return LiveDisplay(devices) if sys.stdout.isatty() else Display()


def describe_trial(trial: Trial) -> str:
    """Return a trial's name in one line."""
    cell = trial.cell
    where = cell.placement.name if cell.placement.device_of() is None else f"GPU {cell.placement.name}"
    process = f"process {trial.replicate + 1}"
    detail = process if PHASES[trial.phase].is_enough else ", ".join(trial.precisions)
    detail += f", seed {trial.seed}, {_epochs(trial)}" if trial.phase == "train" else ""
    batch = (
        ""
        if cell.data.kind == "script"
        else ", largest batch"
        if PHASES[trial.phase].searches
        else f", batch {cell.batch_size}"
    )
    changed = " ".join(f"{name}={value}" for name, value in cell.suite.parameters)
    suite = f"{cell.suite.name} ({changed})" if changed else cell.suite.name
    phase = f"{trial.phase} of an ablation" if trial.ablation else trial.phase
    return f"{suite}, {where}{batch}, {phase} ({detail})"


def describe_results(phase: str, results: Sequence[TrialResult]) -> str:
    """Return the results of a trial of a phase in one line."""
    return "; ".join(_describe(phase, result) for result in results)


def _describe(phase: str, result: TrialResult) -> str:
    describe = PHASES[phase].describe
    if result.status in MEASURED and result.row is not None and describe is not None:
        return describe(result)
    reason = f": {result.detail}" if result.detail or result.status not in MEASURED else ""
    return f"{result.precision} {result.status}{reason}"


def describe_gpu(sample: Sample, board: Device | None = None) -> str:
    """Return a GPU's name, temperature, utilisation, power and memory in a line, in the form of gpustat's."""
    name, limit_w, total = (board.names or (board.name,))[0] if board else "GPU", None, None
    if board and board.uuid:  # of several together, limit and memory are nobody's, or the sum
        limit_w, total = board.power_limit_w, board.memory_total_bytes
    mib = (None if size is None else size / 2**20 for size in (sample.memory_used_bytes, total))
    used, all_of_it, power, limit = map(_whole, (*mib, sample.power_w, limit_w))
    state = f"{_whole(sample.temperature_c):>3}°C, {_whole(sample.utilization_pct):>3} %,  {power:>3} / {limit:>3} W"
    return f"[{sample.placement}] {name} | {state} | {used:>5} / {all_of_it:>5} MiB"


def _whole(value: float | None) -> str:
    return "??" if value is None else f"{value:.0f}"


def show_plan(
    plan: Plan,
    environment: Environment,
    warnings: Sequence[str],
    *,
    default_device: bool,
    quick: bool = False,
    within_s: float | None = None,
) -> None:
    """Print what is going to run, where, and how long it may take."""
    for device in environment.devices:
        where = f"GPU {device.placement}" if device.placement.isdigit() else device.placement
        print_plain(f"{where}: {device.name} ({device.architecture}); torch {environment.torch}")
    if default_device:
        gpus = "one GPU of each model" if quick else "every visible GPU"
        where = gpus if environment.devices[0].is_gpu else "the CPU, because there is no GPU"
        where += " that this torch build has kernels for" if environment.left_out else ""
        print_plain(f"No --gpus was given: measuring on {where}.")
    for warning in warnings:
        print_plain(f"Warning: {warning}")
    groups: dict[tuple[str, str], list[tuple[Trial, float | None]]] = {}
    for trial, estimate in zip(plan.trials, plan.seconds, strict=True):
        groups.setdefault((trial.cell.suite.name, trial.cell.placement.name), []).append((trial, estimate))
    for (suite, placement), group in groups.items():
        trials, seconds = [trial for trial, _ in group], [estimate for _, estimate in group]
        print_plain(f"{suite} on {placement}{_describe_group(trials)}; {_duration(seconds)}")
    counted = "1 trial" if len(plan.trials) == 1 else f"{len(plan.trials)} trials"
    limit = "" if within_s is None else f"; --within ends it in {_time(within_s)}, report included"
    print_plain(f"{counted}, {_duration([*plan.seconds, REPORT_S])} in all{limit}")


def show_remaining(plan: Plan, left: Plan) -> None:
    """Print how much of a plan is finished: all but what is ``left``."""
    count, total = len(left.trials), len(plan.trials)
    print_plain(
        f"{total - count} of {total} planned trials are finished already; {count} left, "
        f"{_duration([*left.seconds, REPORT_S])}."
    )


def _describe_group(trials: Sequence[Trial]) -> str:
    """Return the variants, arms, batch sizes and epochs of a suite's trials on one device."""
    variants = {trial.cell.suite.parameters for trial in trials}
    each = f", {len(variants)} variants" if len(variants) > 1 else ""
    arms = dict.fromkeys(name for trial in trials for name in trial.precisions)
    line = f"{each}: {', '.join(arms)}"
    if trials[0].cell.data.kind == "script":
        return line
    batches = [str(size) for size in sorted({trial.cell.batch_size for trial in trials if trial.phase not in SEARCHES})]
    if any(trial.phase in SEARCHES for trial in trials):
        batches.append("the largest that fits, found when it runs")
    line += f"; batch {', '.join(batches)}"
    for training in trials:
        if training.phase == "train":
            return f"{line}; {_epochs(training)} on {training.cell.data}"
    return line


def _epochs(trial: Trial) -> str:
    return "1 epoch" if trial.epochs == 1 else f"{trial.epochs} epochs"


def _duration(seconds: Sequence[float | None]) -> str:
    known = [second for second in seconds if second is not None]
    if len(known) < len(seconds):
        return "an unknown time"
    return f"about {_time(sum(known))}"


def _time(seconds: float) -> str:
    """Return a time to two digits: 85 s, 2.5 min, 40 min, 1.7 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    value, unit = (minutes, "min") if minutes < 90 else (minutes / 60, "h")
    return f"{value:.2g} {unit}" if value < 99.5 else f"{value:,.0f} {unit}"
