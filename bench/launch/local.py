"""This machine: a fork server that has imported torch, and a fresh fork of it for each trial."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from fnmatch import fnmatchcase
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from bench.launch.launcher import Ending, Launcher
from bench.measure.sampler import sigint_held
from bench.results.records import SPIN_VARIABLES, Device, Done, Environment, Failed, Message, Progress
from bench.spec.errors import UsageError
from bench.spec.phases import PHASES
from bench.spec.trial import Placement, Rendezvous, Trial
from bench.training.failures import exit_cause, oom_kills

PRELOAD = "bench.worker.worker"
SILENCE_S = 1800.0
"""A worker that is silent for so long is taken to hang; its longest silence is an ABBA round of very slow steps."""
POLL_S = 2.0
"""A silent worker's launcher sends an empty progress so often."""
SPIN_COUNT = "1000"
"""GNU OpenMP's default is 300,000: threads that wait for one whose core another program has taken then delay it
further, and steps take tens of times as long. About 15 µs of spinning are enough where no other program runs."""
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TF32_VARIABLES = ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE")
EMULATION_VARIABLES = ("CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATION_STRATEGY")
"""Variables that change behind the program's back how fp32 is multiplied: in TF32, or as sums of bfloat16 products."""
RECORDED = (
    *("ATEN_CPU_CAPABILITY", "CUBLAS*", "CUDA_DEVICE_*", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING"),
    *("CUDA_VISIBLE_DEVICES", "CUDNN_*", "DNNL_*", "HIP_*", "HSA_*", "KMP_*", "MIOPEN_*", "MKL_*", "NCCL_*"),
    *("OMP_NUM_THREADS", "ONEDNN_*", "PYTORCH_*", "ROCR_*", "TORCHDYNAMO_*", "TORCHINDUCTOR_*", "TORCH_NCCL_*"),
)
"""Variables that may change figures, as patterns; folders do not, and would tell whose they are."""


class LocalLauncher(Launcher):
    """Runs functions of the worker one after the other, for they share the machine."""

    def __init__(self, silence_s: float = SILENCE_S, patience_s: float = 5.0) -> None:
        """Prepare the fork server; it starts with the first process.

        Args:
            silence_s: how long a process may say nothing before it is taken to hang.
            patience_s: how long a process may take to end before it is killed.
        """
        super().__init__()
        self.silence_s, self.patience_s = silence_s, patience_s
        self._process: Any = None
        self.removed_variables = remove_overrides()
        """Overrides of fp32 products that were in the environment, as NAME=VALUE."""
        if not any(name in os.environ for name in SPIN_VARIABLES):
            os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
        # The fork server is a new interpreter: it must find this package wherever it is started from.
        root = str(Path(__file__).resolve().parents[2])
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
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
        return replace(environment, removed_variables=self.removed_variables, variables=recorded())

    def cancel(self) -> None:
        """End the process that is running, if there is one."""
        if (process := self._process) is not None:
            process.kill()

    def call(self, target: str, *arguments: object) -> Any:
        """Call a function of the worker, ``module:name``, in a fresh process and return its value.

        The function gets one argument more: a function that sends messages.

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
        return self._run(
            "bench.worker.worker:run_trial",
            (trial, device, self.workspace, rendezvous),
            on_message,
            parent=PHASES[trial.phase].has_children,
        )

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
            try:
                _start(process)
                self._process = process
                sending.close()
                self.on_start(process.pid or 0)
                ending = self._listen(receiving, on_message)
            finally:
                self._process = None
                receiving.close()
                _stop(process, self.patience_s)
            if ending is None:
                kind, how = exit_cause(process.exitcode, kills)
                ending = Ending(kind=kind, text=f"the process ended without a message, {how}")
            if ending.kind in ("error", "died", "timeout"):
                return replace(ending, text=f"{ending.text}{_tail(log)}")
            return ending

    def _listen(self, receiving: Connection, on_message: Callable[[Message], None]) -> Ending | None:
        """Pass messages on until the process ends; return its ending, or None if it ended without one."""
        heard = time.monotonic()
        while True:
            if not wait([receiving], timeout=min(POLL_S, self.silence_s)):
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
    """Unset what overrides how fp32 is multiplied, before torch reads it; return what there was, as NAME=VALUE."""
    names = (*TF32_VARIABLES, *EMULATION_VARIABLES)
    return tuple(f"{name}={environment.pop(name)}" for name in names if name in environment)


def recorded(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the variables that run.json records, as NAME=VALUE, by name."""
    known = [name for name in environment if any(fnmatchcase(name, pattern) for pattern in RECORDED)]
    return tuple(f"{name}={environment[name]}" for name in sorted(known) if not name.endswith(("_DIR", "_PATH")))


def _start(process: Any) -> None:
    """Start a process; a signal that ends the run takes effect afterwards, for it would leave half a process behind."""
    came: list[int] = []
    numbers = ENDING_SIGNALS if threading.current_thread() is threading.main_thread() else ()
    handlers = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda which, _frame: came.append(which))
    try:
        with sigint_held():  # the worker lifts it when what it prints goes to its log
            process.start()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for which in came:
            signal.raise_signal(which)


def _stop(process: Any, patience_s: float) -> None:
    if process.pid is None:
        return  # it could not be started
    process.join(timeout=patience_s)
    if process.is_alive():
        process.kill()
        process.join()


def _tail(log: Path, lines: int = 8) -> str:
    """Return the end of what the process printed, on one line."""
    printed = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    text = [line for line in printed if set(line.strip()) - {"^", "~"}][-lines:]
    return " | " + " / ".join(line.strip() for line in text) if text else ""
