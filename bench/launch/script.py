"""A training script in fresh processes of its own, with the hook inside: what a trial of it runs."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil

import bench.script
from bench.launch import Ending, OnMessage
from bench.launch.local import GONE_S, ROOT, LocalLauncher
from bench.results.records import (
    Block,
    Device,
    MemoryPeak,
    Operations,
    Progress,
    Speed,
    TrialResult,
)
from bench.script.steps import (
    NARROW,
    WAIT_PCT,
    RefusedError,
    Timing,
    compared,
    foreign_load_pct,
    order,
    products,
    shares,
    timing,
)
from bench.spec import lifetime
from bench.spec.trial import Rendezvous, Script, Trial
from bench.worker.failures import last_words, printed

HOOK = Path(bench.script.__file__).with_name("hook.py")
VARIABLE = "AMPMETER_HOOK"
POLL_S = 0.05
LATE_S = 5.0
"""How long the other ranks may take to write their records after the first has ended."""
CENSUS_STEPS = 10
"""Steps of an arm's profiled process after its warm-up."""
UNTYPED = "the script's own process ended before torch was imported in it, or it was never started"


class FailedError(Exception):
    """A script's process that failed; the ending says how."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.text)
        self.ending = ending


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """One of an arm's timed processes: that of its slowest rank."""

    timing: Timing
    record: dict[str, Any]
    load_pct: float | None


class ScriptLauncher(LocalLauncher):
    """Runs a script's arms: in the memory phase one profiled process, in the speed phase a round of timed ones."""

    def __init__(self, script: Script) -> None:
        """Prepare to run a script."""
        super().__init__()
        self.script = script
        self._options = dict(script.arms)

    def run(self, trial: Trial, device: Device, on_message: OnMessage, _rendezvous: Rendezvous | None = None) -> Ending:
        """Run one trial and pass its records on: a profiled process, or a round of timed ones."""
        try:
            return (
                self._profile(trial, device, on_message)
                if trial.phase == "memory"
                else self._round(trial, device, on_message)
            )
        except RefusedError as error:
            return Ending(kind="usage", text=str(error))
        except FailedError as error:
            return error.ending

    def _profile(self, trial: Trial, device: Device, on_message: OnMessage) -> Ending:
        """Run an arm under the profiler: what it computed, and its peak of memory."""
        started, begun = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
        name, reference = trial.precisions[0], trial.cell.reference
        records = self._run_arm(trial, name, device, on_message, steps=CENSUS_STEPS, census=True)
        record = records[0]
        if len(record["steps"]) <= self.script.warmup:
            timing(record, self.script.warmup)  # which says why
        if self.script.inject and name != "amp-bf16" and any(kind in NARROW for kind in record["computed"]):
            raise RefusedError(f"the script computes in 16 bits itself: {products(record['computed'])}")
        warnings = list[str]()
        if name != reference and (first := self._profiled(reference)) is not None:
            warnings = compared(record, first)
        self.notes += [f"{self.script.name}, {name}: {warning}." for warning in warnings]
        path = self._profile_path(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(record))
        peaks = [
            MemoryPeak(
                peak_allocated_bytes=each["allocated_bytes"],
                peak_reserved_bytes=each["reserved_bytes"],
                peak_resident_bytes=None if device.is_gpu else each["resident_bytes"],
            )
            for each in records
        ]
        result = TrialResult(
            precision=name,
            status="ok",
            detail="; ".join((products(record["computed"]), *warnings)),
            started=started,
            wall_s=time.monotonic() - begun,
            operations=_operations(record),
            memory=MemoryPeak.of_all(peaks) if len(peaks) > 1 else peaks[0],
        )
        on_message(result)
        return Ending(kind="done")

    def _profile_path(self, name: str) -> Path:
        return (self.workspace or Path()) / "profiles" / f"{name}.json"

    def _profiled(self, name: str) -> dict[str, Any] | None:
        """Return the record of an arm's profiled process, also from before the run was resumed."""
        with suppress(OSError, ValueError):
            record: dict[str, Any] = json.loads(self._profile_path(name).read_text())
            return record
        return None

    def _round(self, trial: Trial, device: Device, on_message: OnMessage) -> Ending:
        """Time the arms in a round of processes, each arm twice; an arm that fails leaves it, the others go on."""
        started, begun, reference = (
            datetime.now(UTC).isoformat(timespec="seconds"),
            time.monotonic(),
            trial.cell.reference,
        )
        if trial.precisions[0] != reference or len(trial.arms) == 1:
            return Ending(kind="unsupported", text="there is nothing left to compare it with")
        timed: dict[str, list[Process]] = {name: [] for name in trial.precisions}
        failed: dict[str, Ending] = {}
        turns = order(trial.precisions, trial.replicate)
        for position, name in enumerate(turns):
            if name in failed or reference in failed:
                continue
            try:
                records = self._run_arm(trial, name, device, on_message, position=position, turns=len(turns))
                process = self._slowest(records)
                if (other := next(iter(timed[reference]), None)) and process.timing.shape != other.timing.shape:
                    raise RefusedError("its optimizer steps and backward passes are others than the reference's")
            except RefusedError as error:
                failed[name] = Ending(kind="usage", text=str(error))
                continue
            except FailedError as error:
                failed[name] = error.ending
                continue
            timed[name].append(process)
            for iteration in process.timing.iterations:
                on_message(
                    Block(
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
                )
        common: dict[str, Any] = {"started": started, "wall_s": time.monotonic() - begun}
        for name in trial.precisions:
            ending = failed.get(name) or failed.get(reference)
            if ending is not None:
                whose = "" if name in failed else f"the reference {reference} failed: "
                text = f"{whose}{ending.text}"
                on_message(TrialResult(precision=name, status="failed", detail=text, **common))
            else:
                on_message(self._result(name, timed[name], timed[reference] if name != reference else None, common))
        return Ending(kind="done")

    def _slowest(self, records: list[dict[str, Any]]) -> Process:
        """Return the measurement of the slowest rank."""
        timings = [timing(record, self.script.warmup) for record in records]
        place = max(range(len(timings)), key=lambda rank: timings[rank].step_ms)
        load_pct = foreign_load_pct(records[0]["loads"]) if len(records) == 1 else None
        return Process(timing=timings[place], record=records[place], load_pct=load_pct)

    def _result(
        self, name: str, processes: list[Process], reference: list[Process] | None, common: dict[str, Any]
    ) -> TrialResult:
        """Return the row of an arm in a round."""
        log_ms = _log_ms(processes)
        step_ms = math.exp(log_ms)
        timings = [process.timing for process in processes]
        loads = [process.load_pct for process in processes if process.load_pct is not None]
        waits = [each.wait_pct for each in timings if each.wait_pct is not None]
        losses = [each.loss for each in timings if each.loss is not None]
        times = sorted(iteration.ms for each in timings for iteration in each.counted)
        skipped = sum(each.skipped for each in timings)
        values = {"script_wait_pct": sum(waits) / len(waits)} if waits else {}
        values |= {"script_loss": sum(losses) / len(losses)} if losses else {}
        profiled = self._profiled(name)
        notes = (
            [f"waited for data in {values['script_wait_pct']:.0f} % of a step"]
            if sum(waits) > WAIT_PCT * len(waits)
            else []
        )
        notes += [f"{skipped} optimizer steps skipped"] if skipped else []
        self.notes += [f"{self.script.name}, {name}: {note}." for note in notes]
        return TrialResult(
            precision=name,
            status="ok",
            detail="; ".join(notes),
            **common,
            operations=_operations(profiled) if profiled else None,
            speed=Speed(
                steady=True,
                warmup_steps=self.script.warmup,
                switch_warmup_steps=0,
                block_steps=sum(len(each.counted) for each in timings) // len(timings),
                rounds=1,
                step_ms=step_ms,
                samples_per_s=1e3 / step_ms,
                speedup=math.exp(_log_ms(reference) - log_ms) if reference else None,
                skipped_steps=skipped,
                step_p50_ms=times[len(times) // 2],
                step_p95_ms=times[len(times) * 95 // 100],
                foreign_load_pct=max(loads, default=None),
            ),
            values=values,
        )

    def _run_arm(
        self,
        trial: Trial,
        name: str,
        device: Device,
        on_message: OnMessage,
        *,
        steps: int | None = None,
        census: bool = False,
        position: int = 0,
        turns: int = 1,
    ) -> list[dict[str, Any]]:
        """Run one process of an arm to the end of its measured steps; return the record of each rank.

        Raises:
            RefusedError: it cannot be measured.
            FailedError: it failed, or hung.
        """
        self._require_nothing_left()
        steps = steps or self.script.steps
        with tempfile.TemporaryDirectory(prefix="ampmeter-", ignore_cleanup_errors=True) as folder:
            home = Path(folder)
            site, scratch, log, out = home / "site", home / "scratch", home / "log", home / "out"
            site.mkdir()
            scratch.mkdir()
            shutil.copyfile(HOOK, site / "sitecustomize.py")
            settings = {
                "main": self.script.main,
                "out": str(out),
                "scratch": str(scratch),
                "steps": steps,
                "warmup": self.script.warmup,
                "inject": name if self.script.inject else "",
                "census": census,
                "allow_writes": self.script.allow_writes,
                "seed": trial.replicate,
            }
            words = [*_command(self.script.command), *shlex.split(self._options[name])]
            words = [word.replace("{scratch}", str(scratch)).replace("{seed}", str(trial.replicate)) for word in words]
            environment = _environment(device, site) | {VARIABLE: json.dumps(settings)}
            groups: set[int] = set()
            with log.open("wb") as output:
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                    preexec_fn=partial(lifetime.end_with, os.getpid()),  # noqa: PLW1509 - a call of the kernel alone
                )
            try:
                self.on_start([process.pid])
                total = self.script.warmup + steps

                def show(count: int) -> None:
                    done = (position + min(1.0, count / total)) / turns
                    on_message(Progress(text=f"{name}: step {count} of {total}", done=done))

                hung = _wait(process, log, out.with_name("out.0.beat"), trial.silence_s, show)
                records = _records(home)
                groups |= {record["group"] for record in records}
            finally:
                self._end(process, groups)
            output_text = printed(log)
        if refused := next((record["refused"] for record in records if "refused" in record), None):
            raise RefusedError(
                f"{refused}, so it was stopped before: name {{scratch}} as its output folder, or give --allow-writes"
            )
        if hung or process.returncode:
            how = f"no sign of life for {trial.silence_s:g} s" if hung else f"exit code {process.returncode}"
            last = last_words(output_text)
            kind = "timeout" if hung else "oom" if "OutOfMemoryError" in output_text else "error"
            raise FailedError(Ending(kind=kind, text=f"{how}; it printed last: {last}", log=output_text))
        if not records or len(records) < records[0]["world"]:
            raise RefusedError(UNTYPED)
        return records

    def _end(self, process: subprocess.Popen[bytes], groups: set[int]) -> None:
        """End a process and all that it has started, and wait until nothing of that runs."""
        with suppress(psutil.NoSuchProcess):
            for descendant in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    groups.add(os.getpgid(descendant.pid))
                    descendant.kill()
        for group in {process.pid, *groups}:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
            self._left.add(group)
        process.wait()
        self._wait_until_gone(GONE_S)


def _records(home: Path) -> list[dict[str, Any]]:
    """Return the record of each rank; the first rank may end a moment before the others have written theirs."""
    until_s = time.monotonic() + LATE_S
    while True:
        records = [json.loads(path.read_text()) for path in sorted(home.glob("out.*")) if path.suffix[1:].isdigit()]
        if not records or len(records) >= records[0]["world"] or time.monotonic() > until_s:
            return records
        time.sleep(POLL_S)


def _wait(process: subprocess.Popen[bytes], log: Path, beat: Path, silence_s: float, show: Any) -> bool:
    """Wait until a process has ended; return whether it neither printed nor stepped for too long instead."""
    heard, life = time.monotonic(), (0, "")
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
            return False
        now = (log.stat().st_size, beat.read_text() if beat.exists() else "")
        if now != life:
            heard, life = time.monotonic(), now
        if time.monotonic() - heard > silence_s:
            return True
        show(int(now[1] or 0))


def _command(words: tuple[str, ...]) -> list[str]:
    """Return the words that start a script: Python's own first where they begin with the script."""
    return [sys.executable, *words] if words[0].endswith(".py") or words[0] == "-m" else list(words)


def _environment(device: Device, site: Path) -> dict[str, str]:
    """Return the environment of a script: the hook first on its path, this package not, and only its devices."""
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(ROOT)]
    environment = {name: value for name, value in os.environ.items() if name != lifetime.LAUNCHER}
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    every = dict(enumerate(seen.split(","))) if seen else {}
    visible = [every.get(int(word), word) for word in device.placement.split("+") if word.isdigit()]
    return environment | {
        "PYTHONPATH": os.pathsep.join((str(site), *paths)),
        "CUDA_VISIBLE_DEVICES": ",".join(visible),
        "WANDB_MODE": "offline",
    }


def _log_ms(processes: list[Process]) -> float:
    """Return the mean of the logarithms of processes' step times: of an ABBA round, drift cancels in it."""
    return sum(math.log(process.timing.step_ms) for process in processes) / len(processes)


def _operations(record: dict[str, Any]) -> Operations:
    text = " ".join(f"{kind}:{100 * share:.0f}%" for kind, share in shares(record["computed"]).items())
    return Operations(compute_dtypes=text)
