"""A training script in fresh processes of its own, with the hook inside: what a trial of it runs."""

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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil

from bench.launch import Ending, OnMessage, require_one_task
from bench.launch.local import LocalLauncher
from bench.measure.disturbance import CpuWatch
from bench.phases.memory import MemoryPeak
from bench.phases.speed import Speed
from bench.results.records import Block, Device, Operations, Progress, TrialResult
from bench.run.prepare import PreparedRun
from bench.script.hook import ignores_hook
from bench.script.prepare import prepare_script
from bench.script.steps import (
    NARROW,
    WAIT_PCT,
    RefusedError,
    Timing,
    compared,
    has_diverged,
    order,
    products,
    shares,
    timing,
)
from bench.script.terminal import Terminal
from bench.spec import lifetime
from bench.spec.own_modules import ROOT
from bench.spec.request import Request, Script
from bench.spec.trial import Trial
from bench.worker.failures import exit_cause, last_words, oom_kills, printed

BESIDE = {"hook.py": "sitecustomize.py", "overlay.py": "ampmeter_overlay.py", "scaling.py": "ampmeter_scaling.py"}
"""Modules that run inside the script, by the names that they have there."""
VARIABLE = "AMPMETER_HOOK"
POLL_S = 0.05
LATE_S = 5.0
"""How long the other ranks may take to write their records after the first has ended."""
CENSUS_STEPS = 10
"""Steps of an arm's profiled process after its warm-up."""
UNSEEN = "no step of a torch optimizer was seen: the script ended without one, or has an update rule of its own"


class ScriptLauncher(LocalLauncher):
    """Runs a script's arms: in the memory phase one profiled process, in the speed phase a round of timed ones."""

    def __init__(self, script: Script) -> None:
        """Prepare to run a script."""
        super().__init__()
        self.script = script
        self._compiled = tempfile.TemporaryDirectory(prefix="ampmeter-compiled-", ignore_cleanup_errors=True)

    def close(self) -> None:
        """Remove the code that torch compiled."""
        self._compiled.cleanup()
        super().close()

    def prepare(self, request: Request) -> PreparedRun:
        """Plan the script's profiled and timed processes."""
        return prepare_script(request, self.script, self)

    def run(self, trial: Trial, device: Device, on_message: OnMessage) -> Ending:
        """Run one trial and pass its records on: a profiled process, or a round of timed ones."""
        started, begun = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
        try:
            results = (self._profile if trial.phase == "memory" else self._round)(trial, device, on_message)
        except RefusedError as error:
            return Ending(kind=error.kind, text=str(error), log=error.log)
        if not results:
            return Ending(kind="unsupported", text="there is nothing left to compare it with")
        for result in results:
            on_message(replace(result, started=started, wall_s=time.monotonic() - begun))
        return Ending(kind="done")

    def _profile(self, trial: Trial, device: Device, on_message: OnMessage) -> list[TrialResult]:
        """Run an arm under the profiler: what it computed, and its peak of memory."""
        name, reference = trial.precisions[0], trial.cell.reference
        records = self._run_arm(trial, name, device, on_message)
        record = records[0]
        if len(record["steps"]) <= self.script.warmup:
            timing(record, self.script.warmup)  # which says why
        computed = products(record["computed"])
        is_narrow = name.startswith("amp-")
        if self.script.inject and not is_narrow and any(kind in NARROW for kind in record["computed"]):
            raise RefusedError(f"the script computes in 16 bits itself: {computed}")
        profiled = None if name == reference else self._profiled(reference)
        warnings = compared(record, profiled) if profiled else []
        accumulating = sum(step["backwards"] > 1 for step in record["steps"])
        if self.script.inject and name == "amp-fp16" and 2 * accumulating > len(record["steps"]):
            warnings.append(
                "gradients are unscaled after each backward pass, of which several add to them: that takes longer than "
                "a GradScaler of the script's own"
            )
        if record["without_scale"]:
            warnings.append("torch.autograd.grad runs without the loss scale: small gradients may become zero there")
        path = self._profile_path(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(record))
        peaks = []
        for each in records:
            peak = MemoryPeak(
                peak_allocated_bytes=each["allocated_bytes"],
                peak_reserved_bytes=each["reserved_bytes"],
                peak_resident_bytes=None if device.is_gpu else each["resident_bytes"],
            )
            peaks.append(peak)
        memory = MemoryPeak.of_all(peaks) if len(peaks) > 1 else peaks[0]
        diverged = any(has_diverged(each["steps"]) for each in records)
        return [self._result(name, warnings, memory, diverged=diverged, details=(computed,))]

    def _profile_path(self, name: str) -> Path:
        return (self.workspace or Path()) / "profiles" / f"{name}.json"

    def _profiled(self, name: str) -> dict[str, Any] | None:
        """Return the record of an arm's profiled process, also from before the run was resumed."""
        with suppress(OSError, ValueError):
            record: dict[str, Any] = json.loads(self._profile_path(name).read_text())
            return record
        return None

    def _round(self, trial: Trial, device: Device, on_message: OnMessage) -> list[TrialResult]:
        """Time the arms in a round of processes, each arm twice; an arm that fails leaves it, the others go on."""
        reference = trial.cell.reference
        if trial.precisions[0] != reference or len(trial.arms) == 1:
            return []
        timed: dict[str, list[Timing]] = {name: [] for name in trial.precisions}
        failed: dict[str, str] = {}
        cut_short: dict[str, str] = {}
        turns = order(trial.precisions, trial.replicate)
        for position, name in enumerate(turns):
            if name in failed or reference in failed:
                continue
            try:
                records = self._run_arm(trial, name, device, on_message, position=position, turns=len(turns))
                timings = [timing(record, self.script.warmup) for record in records]
                slowest = max(timings, key=lambda each: each.step_ms)
                if timed[reference] and slowest.shape != timed[reference][0].shape:
                    raise RefusedError("its optimizer steps and backward passes are others than the reference's")
            except RefusedError as error:
                failed[name] = str(error)
                continue
            timed[name].append(slowest)
            if not all(record["whole"] for record in records):
                cut_short[name] = f"it ended after {len(slowest.iterations)} of the iterations that were to be measured"
            for iteration in slowest.iterations:
                block = Block(
                    trial=trial.id,
                    precision=name,
                    round=trial.replicate,
                    position=position,
                    steps=1,
                    time_ms=iteration.ms,
                    start_s=iteration.start_s,
                    skipped_steps=iteration.skipped,
                    discarded=iteration.pause,
                )
                on_message(block)
        results = []
        for name, timings in timed.items():
            why = failed.get(name)
            if reference in failed and why is None:
                why = f"the reference {reference} failed: {failed[reference]}"
            if why is None:
                result = self._timed(name, timings, [cut_short[name]] if name in cut_short else [])
            else:
                result = TrialResult(precision=name, status="failed", detail=why)
            results.append(result)
        return results

    def _timed(self, name: str, timings: list[Timing], warnings: list[str]) -> TrialResult:
        """Return the row of an arm in a round, with warnings, to which it adds."""
        skipped = sum(each.skipped for each in timings)
        times = sorted(ms for each in timings for ms in each.counted_ms)
        waits_pct = [each.wait_pct for each in timings if each.wait_pct is not None]
        wait_pct = fmean(waits_pct) if waits_pct else None
        losses = [each.loss for each in timings if each.loss is not None and math.isfinite(each.loss)]
        loads_pct = [each.load_pct for each in timings if each.load_pct is not None]
        speed = Speed(
            steady=all(each.steady for each in timings),
            warmup_steps=self.script.warmup + max(each.warming for each in timings),
            switch_warmup_steps=0,
            step_p50_ms=times[len(times) // 2],
            step_p95_ms=times[len(times) * 95 // 100],
            foreign_load_pct=max(loads_pct, default=None),
            script_wait_pct=wait_pct,
            script_loss=fmean(losses) if losses else None,
        )
        if wait_pct is not None and wait_pct > WAIT_PCT:
            warnings.append(f"waited for data in {wait_pct:.0f} % of a step")
        if skipped:
            warnings.append(f"{skipped} optimizer steps skipped")
        return self._result(name, warnings, speed, diverged=any(each.diverged for each in timings))

    def _result(
        self, name: str, warnings: list[str], row: MemoryPeak | Speed, *, diverged: bool, details: tuple[str, ...] = ()
    ) -> TrialResult:
        """Return the row of an arm that was measured, with the types of its profiled process; note its warnings."""
        if diverged:
            warnings = ["the loss became NaN or Inf", *warnings]
        self.notes += [f"{self.script.name}, {name}: {warning}." for warning in warnings]
        profiled = self._profiled(name)
        parts = shares(profiled["computed"]) if profiled else {}
        types = " ".join(f"{kind}:{100 * part:.0f}%" for kind, part in parts.items())
        return TrialResult(
            precision=name,
            status="nonfinite" if diverged else "ok",
            detail="; ".join((*details, *warnings)),
            operations=Operations(compute_dtypes=types),
            row=row,
        )

    def _run_arm(
        self, trial: Trial, name: str, device: Device, on_message: OnMessage, *, position: int = 0, turns: int = 1
    ) -> list[dict[str, Any]]:
        """Run one process of an arm to the end of its measured steps; return the record of each rank.

        Raises:
            RefusedError: it failed, hung or cannot be measured.
        """
        self._require_nothing_left()
        census, kills = trial.phase == "memory", oom_kills()
        steps = CENSUS_STEPS if census else self.script.steps
        total = self.script.warmup + steps
        with tempfile.TemporaryDirectory(prefix="ampmeter-", ignore_cleanup_errors=True) as folder:
            home = Path(folder)
            site, scratch, log = home / "site", home / "scratch", home / "log"
            for made in (site, scratch, home / "tmp"):
                made.mkdir()
            for module, copied in BESIDE.items():
                shutil.copyfile(Path(__file__).with_name(module), site / copied)
            settings = {
                "home": str(home),
                "started_s": time.time(),
                "steps": steps,
                "warmup": self.script.warmup,
                "inject": name if self.script.inject else "",
                "census": census,
                "allow_writes": self.script.allow_writes,
                "seed": trial.replicate,
            }
            words = [*_command(self.script.command), *shlex.split(dict(self.script.arms)[name])]
            words = [word.replace("{scratch}", str(scratch)).replace("{seed}", str(trial.replicate)) for word in words]
            if ignores_hook(words):
                raise RefusedError("it would start a Python in which its steps cannot be seen (-E, -I, -S)")

            def show(count: int) -> None:
                done = (position + min(1.0, count / total)) / turns
                on_message(Progress(text=f"{name}: step {count} of {total}", done=done))

            watch = CpuWatch()
            with Terminal(log) as terminal:
                process = subprocess.Popen(
                    words,
                    stdin=terminal.user_side,
                    stdout=terminal.user_side,
                    stderr=terminal.user_side,
                    env=self._environment(device, home) | {VARIABLE: json.dumps(settings)},
                    start_new_session=True,
                    preexec_fn=partial(lifetime.end_with, os.getpid()),  # noqa: PLW1509 - a call of the kernel alone
                )
                terminal.started()
                records = list[dict[str, Any]]()
                try:
                    self.on_start([process.pid])
                    hung = _wait(process, home, trial.silence_s, show)
                    load_pct = watch.foreign_load_pct()
                    records = [record | {"load_pct": load_pct} for record in _records(home)]
                    exit_code = process.poll()
                finally:
                    self._end(process, home)
                    _remove_empty(home / "made")
            text = printed(log)
        for record in records:
            if "refused" in record:
                raise RefusedError(record["refused"])
        if _is_complete(records):
            return records
        if hung or exit_code:
            cause, how = exit_cause(exit_code, kills)
            how = f"no sign of life for {trial.silence_s:g} s" if hung else f"ended {how}"
            kind = "timeout" if hung else "oom" if cause == "oom" or "OutOfMemoryError" in text else "error"
            raise RefusedError(f"{how}; it printed last: {last_words(text)}", kind=kind, log=text)
        if not records:
            raise RefusedError(UNSEEN)
        return records  # which have few steps, or lack those of other ranks

    def _end(self, process: subprocess.Popen[bytes], home: Path) -> None:
        """End a process and all that was started with its hook, and wait until nothing of that runs."""
        for other in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                if other.pid == process.pid or str(home) in other.environ().get(VARIABLE, ""):
                    self._left.add(os.getpgid(other.pid))
                    lifetime.end_tree(other.pid)
        process.wait()
        self._wait_until_gone()

    def _environment(self, device: Device, home: Path) -> dict[str, str]:
        """Return the environment of a script: the hook first on its path, this package not, and only its devices.

        What it and its libraries write for themselves goes to its own folders; compiled code lasts as long as the run.
        """
        paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(ROOT)]
        environment = {name: value for name, value in os.environ.items() if name != lifetime.LAUNCHER}
        environment.setdefault("TORCHINDUCTOR_CACHE_DIR", self._compiled.name)
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = [word for word in device.placement.split("+") if word.isdigit()]
        if seen:
            gpus = [seen.split(",")[int(gpu)] for gpu in gpus]
        return environment | {
            "PYTHONPATH": os.pathsep.join((str(home / "site"), *paths)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(home / "tmp"),
            "CUDA_VISIBLE_DEVICES": ",".join(gpus),
            "WANDB_MODE": "offline",
            "WANDB_DIR": str(home / "scratch"),
            "KINETO_LOG_LEVEL": "5",  # it reports errors where there is no GPU
        }


def _records(home: Path) -> list[dict[str, Any]]:
    """Return the records of the processes that took steps or cannot be measured, in the order of their start."""
    paths = sorted(home.glob("out.*.json"), key=lambda path: int(path.stem.removeprefix("out.")))
    return [json.loads(path.read_text()) for path in paths]


def _is_complete(records: list[dict[str, Any]]) -> bool:
    """Return whether all processes that train together took their steps, or one says why it cannot be measured."""
    if any("refused" in record for record in records):
        return True
    whole = [record for record in records if record["whole"]]
    return bool(whole) and len(whole) >= whole[0]["world"]


def _wait(process: subprocess.Popen[bytes], home: Path, silence_s: float, show: Callable[[int], None]) -> bool:
    """Wait until the records are complete, or the process and what it started have ended.

    Returns:
        Whether it neither printed nor stepped for too long instead.
    """
    log, beat = home / "log", home / "beat"
    heard_s, life, ended_s = time.monotonic(), (0, ""), math.inf
    while not _is_complete(records := _records(home)):
        if process.poll() is not None:
            ended_s = min(ended_s, time.monotonic())
            if not records or time.monotonic() - ended_s > LATE_S:
                return False
        now = (log.stat().st_size, beat.read_text() if beat.exists() else "")
        if now != life:
            heard_s, life = time.monotonic(), now
        if time.monotonic() - heard_s > silence_s:
            return True
        show(int(now[1] or 0))
        time.sleep(POLL_S)
    return False


def _remove_empty(made: Path) -> None:
    """Remove the folders that a script made outside of its own, the innermost first, if nothing is in them."""
    folders = made.read_text().splitlines() if made.exists() else []
    for folder in sorted(folders, key=len, reverse=True):
        with suppress(OSError):
            Path(folder).rmdir()


def _command(words: tuple[str, ...]) -> list[str]:
    """Return the words that start a script: Python's own first where they begin with the script."""
    return [sys.executable, *words] if words[0].endswith(".py") or words[0] == "-m" else list(words)


def open_launcher(request: Request) -> ScriptLauncher | None:
    """Return the launcher of a request's script; None of a request without one.

    Raises:
        UsageError: torchrun or srun started several tasks.
    """
    if request.script is None:
        return None
    require_one_task()
    return ScriptLauncher(request.script)
