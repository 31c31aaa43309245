"""Runs a training script in fresh processes of its own, with the hook inside."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil

from bench.launch import OnMessage, require_one_task
from bench.launch.local import LocalLauncher
from bench.measure.disturbance import CpuWatch
from bench.phases.memory import MemoryPeak
from bench.phases.speed import Speed
from bench.results.endings import Ending, EndingKind
from bench.results.records import Device, Operations, Progress, TrialResult
from bench.run.prepare import PreparedRun
from bench.script import steps
from bench.script.prepare import prepare_script
from bench.script.steps import RefusedError, Timing
from bench.script.terminal import terminal
from bench.spec import lifetime
from bench.spec.own_modules import ROOT
from bench.spec.request import Request, Script
from bench.spec.trial import Trial
from bench.worker.failures import exit_cause, last_words, oom_kills, printed

# Modules that run inside the script, by the names that they have there.
BESIDE = {
    "script/hook.py": "sitecustomize.py",
    "script/overlay.py": "ampmeter_overlay.py",
    "script/scaling.py": "ampmeter_scaling.py",
    "phases/explain/observe.py": "ampmeter_observe.py",
}
# As in the hook.
VARIABLE = "AMPMETER_HOOK"
POLL_S = 0.05
# How long the other ranks may take to write their records after the first has ended.
LATE_S = 5.0
# Steps of an arm's profiled process after its warm-up.
CENSUS_STEPS = 10
# Share of a step, in per cent, from which waiting for data is warned of.
WAIT_PCT = 20.0
# Share of the steps that do not count for their backward passes from which a row warns of them:
# the last step of an epoch, which may have fewer, is rarer.
UNUSUAL_PCT = 10.0
UNSEEN = (
    "no step of a torch optimizer was seen: the script ended without one, has an update rule of "
    "its own, or its Python was started with -I, -E or -S, under which it loads nothing from "
    "outside"
)

# What the hook wrote of a process.
Record = dict[str, Any]


class ScriptLauncher(LocalLauncher):
    """Runs a script's arms.

    The memory phase runs one profiled process of an arm, the speed phase a round of timed ones.
    """

    def __init__(self, script: Script) -> None:
        """Prepare to run a script."""
        super().__init__()
        self.script = script
        self._loads_pct: list[float] = []
        """Of the processes of a round: the share of the cores that other programs took."""
        self._compiled = tempfile.TemporaryDirectory(
            prefix="ampmeter-compiled-", ignore_cleanup_errors=True
        )

    def close(self) -> None:
        """Remove the code that torch compiled."""
        self._compiled.cleanup()
        super().close()

    def prepare_script(self, request: Request) -> PreparedRun:
        """Plan the script's profiled and timed processes."""
        return prepare_script(request, self.script, self)

    def run(self, trial: Trial, device: Device, on_message: OnMessage) -> Ending:
        """Run one trial and pass its records on: a profiled process, or a round of timed ones."""
        started = datetime.now(UTC).isoformat(timespec="seconds")
        begun_s = time.monotonic()
        measures = {"memory": self._profile, "speed": self._round, "explain": self._explain}
        try:
            results = measures[trial.phase](trial, device, on_message)
        except RefusedError as error:
            return Ending(kind=error.kind, text=str(error), log=error.log)
        for result in results:
            on_message(replace(result, started=started, wall_s=time.monotonic() - begun_s))
        return Ending(kind="done")

    def _profile(self, trial: Trial, device: Device, on_message: OnMessage) -> list[TrialResult]:
        """Run an arm whose products are counted: what it computed, and its peak of memory."""
        name = trial.arm_names[0]
        reference = trial.cell.reference
        records = self._run_arm(trial, name, device, on_message, CENSUS_STEPS, census=True)
        record = records[0]
        if len(record["steps"]) <= self.script.warmup:
            steps.timing(record, self.script.warmup)  # which says why
        computed = steps.types(record["computed"])
        is_narrow = any(kind in steps.NARROW for kind in record["computed"])
        if self.script.inject and is_narrow and not name.startswith("amp-"):
            raise RefusedError(f"the script computes in 16 bits itself: {computed}")
        warnings = list(record["warnings"])
        if "float16" in record["computed"] and not record["is_scaled"]:
            warnings.append(
                "computes in float16 without torch's GradScaler: small gradients may become zero"
            )
        before = self._profiled(reference)
        if name != reference and before:
            warnings += steps.compared(record, before)
        path = self._profile_path(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(record))
        peaks = [MemoryPeak(**each["memory"]) for each in records]
        memory = MemoryPeak.of_all(peaks) if len(peaks) > 1 else peaks[0]
        return [self._result(name, memory, warnings)]

    def _explain(self, trial: Trial, device: Device, on_message: OnMessage) -> list[TrialResult]:
        """Run each arm under its observer; send where its steps spend their time and memory."""
        from bench.phases.explain import Explained
        from bench.phases.explain.script import PLAIN, PROFILED, STEPS, figures_of

        results = []
        for name in trial.arm_names:
            explain = {"plain": PLAIN, "profiled": PROFILED}
            record = self._run_arm(trial, name, device, on_message, STEPS, explain=explain)[0]
            begin = self.script.warmup
            plain = steps.timing(record | {"steps": record["steps"][: begin + PLAIN]}, begin)
            length = steps.period([step["optimizer"] for step in record["steps"][begin:]])
            try:
                for row in figures_of(
                    record,
                    step_ms=plain.step_ms,
                    wait_pct=plain.wait_pct,
                    length=length,
                    gpu=device.is_gpu,
                ):
                    on_message(Explained(trial=trial.id, precision=name, **row))
            except ValueError as error:
                raise RefusedError(str(error)) from None
            results.append(TrialResult(arm=name, status="ok"))
        return results

    def _profile_path(self, name: str) -> Path:
        return (self.workspace or Path()) / "profiles" / f"{name}.json"

    def _profiled(self, name: str) -> Record:
        """Return the record of an arm's profiled process, also from before the run was resumed."""
        with suppress(OSError, ValueError):
            record: Record = json.loads(self._profile_path(name).read_text())
            return record
        return {}

    def _round(self, trial: Trial, device: Device, on_message: OnMessage) -> list[TrialResult]:
        """Time the arms in a round of processes, each arm twice.

        An arm that fails leaves the round, and the others go on.

        Raises:
            RefusedError: the reference failed, or is the only one that is left.
        """
        reference = trial.cell.reference
        if trial.arm_names[0] != reference or len(trial.arms) == 1:
            raise RefusedError("there is nothing left to compare it with", kind="unsupported")
        timed: dict[str, list[Timing]] = defaultdict(list)
        failed: dict[str, TrialResult] = {}
        self._loads_pct = []
        for position, name in enumerate(steps.order(trial.arm_names, trial.replicate)):
            if name in failed:
                continue
            try:
                records = self._run_arm(trial, name, device, on_message, self.script.steps)
                timings = [steps.timing(record, self.script.warmup) for record in records]
                slowest = max(timings, key=lambda each: each.step_ms)
                if timed[reference] and slowest.shape != timed[reference][0].shape:
                    raise RefusedError(
                        "its optimizer steps and backward passes are others than the reference's"
                    )
            except RefusedError as error:
                if name == reference:
                    raise RefusedError(f"the reference {reference} failed: {error}") from error
                failed[name] = TrialResult(arm=name, status="failed", detail=str(error))
                continue
            timed[name].append(slowest)
            for block in slowest.blocks:
                on_message(
                    replace(
                        block,
                        trial=trial.id,
                        precision=name,
                        round=trial.replicate,
                        position=position,
                    )
                )
        return [failed.get(name) or self._timed(name, timed[name]) for name in trial.arm_names]

    def _timed(self, name: str, timings: list[Timing]) -> TrialResult:
        """Return the row of an arm in a round."""
        wait_pct = _mean([each.wait_pct for each in timings])
        speed = Speed(
            steady=all(each.steady for each in timings),
            warmup_steps=self.script.warmup + max(each.warming for each in timings),
            switch_warmup_steps=0,
            foreign_load_pct=max(self._loads_pct, default=None),
            script_wait_pct=wait_pct,
            script_loss=_mean([each.loss for each in timings]),
        )
        warnings = []
        fewest = min(each.steps for each in timings)
        if fewest < self.script.steps:
            warnings.append(
                f"it ended early: {fewest} steps were measured of the {self.script.steps} that "
                "--steps asks for"
            )
        if wait_pct is not None and wait_pct > WAIT_PCT:
            warnings.append(f"waited for data in {wait_pct:.0f} % of a step")
        reasons = [block.discarded for each in timings for block in each.blocks]
        unusual_pct = 100 * reasons.count(steps.UNUSUAL) / len(reasons)
        if unusual_pct > UNUSUAL_PCT:
            warnings.append(
                f"{unusual_pct:.0f} % of its steps, which do not count, had another number of "
                "backward passes than its last ones"
            )
        result = self._result(name, speed, warnings)
        if any(each.diverged for each in timings):
            result = replace(result, status="nonfinite", detail="the loss became NaN or Inf")
        return result

    def _result(self, name: str, row: MemoryPeak | Speed, warnings: list[str]) -> TrialResult:
        """Return the row of an arm that was measured, and note its warnings.

        The types that it computed are those of its profiled process.
        """
        self.notes += [f"{self.script.name}, {name}: {warning}." for warning in warnings]
        types = steps.types(self._profiled(name).get("computed", {}))
        return TrialResult(
            arm=name,
            status="ok",
            detail="; ".join(warnings),
            operations=Operations(compute_dtypes=types),
            row=row,
        )

    def _run_arm(
        self,
        trial: Trial,
        name: str,
        device: Device,
        on_message: OnMessage,
        count: int,
        **observed: Any,
    ) -> list[Record]:
        """Run one process of an arm to the end of its measured steps.

        Args:
            trial: of which it is a part.
            name: the arm's.
            device: that it trains on.
            on_message: is told the number of its steps.
            count: of its measured steps.
            observed: settings of the hook: what else it is to observe.

        Returns:
            The record of each rank. It may have few steps, or lack those of other ranks.

        Raises:
            RefusedError: it failed, hung or cannot be measured.
        """
        self._require_nothing_left()
        kills = oom_kills()
        total = self.script.warmup + count

        def show(step: int) -> None:
            text = f"{name}: step {step} of {total}"
            on_message(Progress(text=text, done=min(1.0, step / total)))

        with tempfile.TemporaryDirectory(prefix="ampmeter-", ignore_cleanup_errors=True) as folder:
            home = Path(folder)
            settings = {
                "home": folder,
                "steps": count,
                "warmup": self.script.warmup,
                "inject": name if self.script.inject else "",
                "allow_writes": self.script.allow_writes,
                "seed": trial.replicate,
                **observed,
            }
            _fill(home)
            environment = self._environment(device, home) | {VARIABLE: json.dumps(settings)}
            words = self._words(name, scratch=str(home / "scratch"), seed=str(trial.replicate))
            hung, exit_code = self._run_process(words, environment, home, trial.silence_s, show)
            records = _records(home)
            text = printed(home / "log")
        for record in records:
            if "refused" in record:
                raise RefusedError(record["refused"])
        if hung:
            raise _failed("timeout", f"no sign of life for {trial.silence_s:g} s", text)
        if exit_code and not _is_complete(records):
            cause, how = exit_cause(exit_code, kills)
            is_oom = cause == "oom" or "OutOfMemoryError" in text
            raise _failed("oom" if is_oom else "error", f"ended {how}", text)
        if not records:
            raise RefusedError(UNSEEN)
        return records

    def _run_process(
        self,
        words: list[str],
        environment: dict[str, str],
        home: Path,
        silence_s: float,
        show: Callable[[int], None],
    ) -> tuple[bool, int | None]:
        """Run a process until its records are there; end it, and all that it started.

        Returns:
            Whether it hung, and the exit code of a process that had ended by itself.
        """
        watch = CpuWatch()
        with terminal(home / "log") as standard:
            process = subprocess.Popen(
                words,
                stdin=standard,
                stdout=standard,
                stderr=standard,
                env=environment,
                start_new_session=True,
                preexec_fn=partial(lifetime.end_with, os.getpid()),  # noqa: PLW1509 - a call of the kernel alone
            )
            try:
                hung = _wait(process, home, silence_s, show)
                load_pct = watch.foreign_load_pct()
                if load_pct is not None:
                    self._loads_pct.append(load_pct)
                return hung, process.poll()
            finally:
                self._end(process, home)
                _remove_empty(home / "made")

    def _words(self, name: str, *, scratch: str, seed: str) -> list[str]:
        """Return the words that start an arm.

        Python's own comes first where the command begins with the script.
        """
        words = [*self.script.command, *shlex.split(dict(self.script.arms)[name])]
        if words[0].endswith(".py") or words[0] == "-m":
            words.insert(0, sys.executable)
        return [word.replace("{scratch}", scratch).replace("{seed}", seed) for word in words]

    def _end(self, process: subprocess.Popen[bytes], home: Path) -> None:
        """End a process and all that was started with its hook; wait until nothing of it runs."""
        for other in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                if other.pid == process.pid or str(home) in other.environ().get(VARIABLE, ""):
                    self._left.add(os.getpgid(other.pid))
                    lifetime.end_tree(other.pid)
        process.wait()
        self._wait_until_gone()

    def _environment(self, device: Device, home: Path) -> dict[str, str]:
        """Return the environment of a script: the hook first on its path, and only its devices.

        What it and its libraries write for themselves goes to its own folders; compiled code lasts
        as long as the run.
        """
        paths = [str(home / "site")]
        for path in os.environ.get("PYTHONPATH", "").split(os.pathsep):
            if path not in ("", str(ROOT)):  # this package is no business of the script's
                paths.append(path)
        gpus = [word for word in device.placement.split("+") if word.isdigit()]
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        if seen:
            gpus = [seen.split(",")[int(gpu)] for gpu in gpus]
        environment = {"TORCHINDUCTOR_CACHE_DIR": self._compiled.name, **os.environ}
        return environment | {
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(home / "tmp"),
            "CUDA_VISIBLE_DEVICES": ",".join(gpus),
            "WANDB_MODE": "offline",
            "WANDB_DIR": str(home / "scratch"),
        }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _failed(kind: EndingKind, how: str, log: str) -> RefusedError:
    """Return the error of a process that failed, with the last line that it printed."""
    last = last_words(log)
    return RefusedError(f"{how}; it printed last: {last}" if last else how, kind=kind, log=log)


def _fill(home: Path) -> None:
    """Make the folders of a process, and copy the hook there."""
    for folder in ("site", "scratch", "tmp"):
        (home / folder).mkdir()
    for module, copied in BESIDE.items():
        source = ROOT / "bench" / module
        if source.exists():  # explain may have been deleted
            shutil.copyfile(source, home / "site" / copied)


def _records(home: Path) -> list[Record]:
    """Return the records of the processes that took steps or cannot be measured, first one first.

    A record with a profiler's trace has it in place of its path.
    """
    paths = sorted(home.glob("out.*.json"), key=lambda path: int(path.stem.removeprefix("out.")))
    records: list[Record] = []
    for path in paths:
        record = json.loads(path.read_text())
        trace = Path(record.get("trace", ""))
        if trace.is_file():
            record["trace"] = json.loads(trace.read_text(errors="replace"))
        records.append(record)
    return records


def _is_complete(records: list[Record]) -> bool:
    """Return whether all processes that train together took their steps, or one is refused."""
    if any("refused" in record for record in records):
        return True
    whole = [record for record in records if record["whole"]]
    return bool(whole) and len(whole) >= whole[0]["world"]


def _wait(
    process: subprocess.Popen[bytes], home: Path, silence_s: float, show: Callable[[int], None]
) -> bool:
    """Wait until the records are complete, or the process has ended and no other rank is late.

    Returns:
        Whether it neither printed nor stepped for too long instead.
    """
    beat = home / "beat"
    last = (0, "")
    heard_s = time.monotonic()
    ended_s = math.inf
    while True:
        records = _records(home)
        now_s = time.monotonic()
        if process.poll() is not None:
            ended_s = min(ended_s, now_s)
        has_ended = ended_s < now_s - LATE_S or (ended_s <= now_s and not records)
        if has_ended or _is_complete(records):
            return False
        step = beat.read_text() if beat.exists() else ""
        signs = ((home / "log").stat().st_size, step)
        if signs != last:
            last = signs
            heard_s = now_s
        if now_s - heard_s > silence_s:
            return True
        show(int(step or 0))
        time.sleep(POLL_S)


def _remove_empty(made: Path) -> None:
    """Remove the folders that a script made outside of its own, if nothing is in them."""
    folders = made.read_text().splitlines() if made.exists() else []
    for folder in sorted(folders, key=len, reverse=True):  # the innermost first
        with suppress(OSError):
            Path(folder).rmdir()


def open_launcher(request: Request) -> ScriptLauncher | None:
    """Return the launcher of a request's script; None of a request without one.

    Raises:
        UsageError: torchrun or srun started several tasks.
    """
    if request.script is None:
        return None
    require_one_task()
    return ScriptLauncher(request.script)
