"""Local processes: a fork server that has imported torch, and one fresh fork of it for each trial."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from bench.launch.launcher import Ending
from bench.measure.sampler import sigint_held
from bench.results.records import SPIN_VARIABLES, Device, Done, Environment, Failed, Message, Progress
from bench.spec.errors import UsageError
from bench.spec.phases import PHASES
from bench.spec.trial import Placement, Rendezvous, Trial
from bench.training.failures import exit_cause, oom_kills

PRELOAD = "bench.worker.worker"
SILENCE_S = 1800.0
"""A worker that has said nothing for so long is taken to hang; its longest silence is a quad of very slow steps."""
SPIN_COUNT = "1000"
"""Less than GNU OpenMP's default of 300,000: with that, threads that wait for one whose core another program has
taken keep it waiting, and steps take tens of times as long. About 15 µs of spinning are enough where nobody does."""
TF32_VARIABLES = ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE")
"""Variables that turn TF32 on or off behind the program's back."""


class LocalLauncher:
    """Runs functions of the worker's side, each in a fresh process."""

    overlapping = False
    """Trials share the machine, so they run one after the other."""

    def __init__(
        self,
        silence_s: float = SILENCE_S,
        patience_s: float = 5.0,
        on_start: Callable[[int], None] = lambda _pid: None,
    ) -> None:
        """Prepare the fork server; it starts with the first process.

        Args:
            silence_s: how long a process may say nothing before it is taken to hang.
            patience_s: how long a process may take to end before it is killed.
            on_start: told the pid of each process.
        """
        self.silence_s, self.patience_s = silence_s, patience_s
        self.on_start = on_start
        self.notes: list[str] = []
        self.workspace: Path | None = None
        """Folder of the run, in which training keeps its checkpoints; None keeps none."""
        self._process: Any = None
        self.removed_variables = remove_overrides()
        """TF32 overrides that were in the environment, as NAME=VALUE."""
        if not any(name in os.environ for name in SPIN_VARIABLES):
            os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
        root = str(Path(__file__).resolve().parents[2])
        known = os.environ.get("PYTHONPATH")
        # The fork server is a new interpreter: it must find this package wherever it is started from.
        os.environ["PYTHONPATH"] = root if not known else f"{root}{os.pathsep}{known}"
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([PRELOAD])

    def survey(self, gpus: tuple[str, ...] | None) -> Environment:
        """Describe this machine and the devices that were named.

        Raises:
            UsageError: a device is not there, or a placement needs other machines.
        """
        if other := next((name for name in gpus or () if Placement(name=name).nodes > 1), None):
            count = Placement(name=other).nodes
            raise UsageError(
                f"--gpus {other} is on {count} machines: start the run on each of them with torchrun --nnodes={count} "
                "(docs/clusters.md)."
            )
        environment: Environment = self.call("bench.devices.survey:survey", gpus)
        return replace(environment, removed_variables=self.removed_variables)

    def cancel(self) -> None:
        """End the process that is running, if there is one."""
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """Do nothing: nothing is held between trials."""

    def call(self, target: str, *arguments: object) -> Any:
        """Call a function of the worker in a fresh process and return its value.

        Args:
            target: the function as ``module:name``, so that its module is not imported here.
            arguments: its arguments; a function that sends messages is passed as the last one.

        Raises:
            UsageError: the function raised one, or its process failed, died or hung.
        """
        ending = self._run(target, arguments, lambda _message: None)
        if ending.kind == "usage":
            raise UsageError(ending.text)
        if ending.kind != "done":
            raise UsageError(f"Looking before the run failed in {target}: {ending.text}")
        return ending.value

    def run(
        self,
        trial: Trial,
        device: Device,
        on_message: Callable[[Message], None],
        rendezvous: Rendezvous | None = None,
    ) -> Ending:
        """Run one trial in a fresh process and pass its records on as they come.

        With a ``rendezvous``, only this machine's processes of a trial whose other processes are started elsewhere.
        """
        if rendezvous is not None:
            return self._run("bench.worker.worker:run_share", (rendezvous, trial, device), on_message)
        parent = PHASES[trial.phase].has_children
        return self._run("bench.worker.worker:run_trial", (trial, device, self.workspace), on_message, parent=parent)

    def _run(
        self, target: str, arguments: tuple[Any, ...], on_message: Callable[[Message], None], *, parent: bool = False
    ) -> Ending:
        receiving, sending = self._context.Pipe(duplex=False)
        # Ours, so that nothing is left behind by a process that is killed.
        with tempfile.TemporaryDirectory(prefix="ampmeter-", ignore_cleanup_errors=True) as folder:
            log, compiled = Path(folder) / "log", Path(folder) / "compiled"
            kills = oom_kills()
            process = self._context.Process(
                target=_serve, args=(sending, str(log), str(compiled), target, arguments), daemon=not parent
            )
            with sigint_held():  # the worker lifts it when what it prints goes to its log
                process.start()
            self._process = process
            sending.close()
            self.on_start(process.pid or 0)
            try:
                ending = self._listen(receiving, on_message)
            finally:
                self._process = None
                receiving.close()
                _stop(process, self.patience_s)
            if ending is None:
                kind, how = exit_cause(process.exitcode, kills)
                ending = Ending(kind=kind, text=f"the process ended without a word, {how}")
            if ending.kind in ("error", "died", "timeout"):
                tail = _tail(log)
                return Ending(kind=ending.kind, text=f"{ending.text}{tail}")
            return ending

    def _listen(self, receiving: Connection, on_message: Callable[[Message], None]) -> Ending | None:
        """Hand messages on until the last word; None where the process ended without one."""
        heard = time.monotonic()
        while True:
            if not wait([receiving], timeout=min(5.0, self.silence_s)):
                if time.monotonic() - heard > self.silence_s:
                    return Ending(kind="timeout", text=f"no sign of life for {self.silence_s:.0f} s")
                on_message(Progress(text=""))
                continue
            try:
                message = receiving.recv()
            except EOFError:
                return None
            heard = time.monotonic()
            if isinstance(message, Done):
                return Ending(kind="done", value=message.value)
            if isinstance(message, Failed):
                return Ending(kind=message.kind, text=message.text)
            on_message(message)


def _serve(*arguments: Any) -> None:
    from bench.worker import worker

    worker.serve(*arguments)


def remove_overrides(environment: MutableMapping[str, str] = os.environ) -> tuple[str, ...]:
    """Unset the variables that override TF32, before torch reads them; return those there were, as NAME=VALUE."""
    return tuple(f"{name}={environment.pop(name)}" for name in TF32_VARIABLES if name in environment)


def _stop(process: Any, patience_s: float) -> None:
    process.join(timeout=patience_s)
    if process.is_alive():
        process.kill()
        process.join()


def _tail(log: Path, lines: int = 8) -> str:
    """Return the end of what the process printed, on one line."""
    printed = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    text = [line for line in printed if set(line.strip()) - {"^", "~"}][-lines:]
    return " | " + " / ".join(line.strip() for line in text) if text else ""
