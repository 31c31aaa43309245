"""This machine: a fork server that has imported torch, and a fresh fork of it for each process.

Each rank of each trial is such a process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from bench.launch import SILENCE_S, Launcher, OnMessage
from bench.launch.ranks import Rank, free_port, run_ranks
from bench.results.endings import SELF_EXPLANATORY, Ending
from bench.results.environment import recorded, remove_overrides
from bench.results.records import SPIN_VARIABLES, Device, Environment, Progress
from bench.spec import lifetime
from bench.spec.errors import UsageError
from bench.spec.own_modules import ROOT, own_modules_first
from bench.spec.placement import Rendezvous
from bench.spec.trial import Trial
from bench.worker.failures import STACK_SIGNAL, exit_cause, oom_kills, printed, reason

PRELOAD = "bench.worker.fork_server"
# How long a driver may take to answer the survey's questions.
SURVEY_S = 300.0
# How long a process that hangs may take to print its stack.
STACK_S = 0.5
# multiprocessing's exit code of a process whose fork server is gone.
SERVER_LOST = 255
# Seconds between two empty messages of progress while a worker is silent.
POLL_S = 2.0
# GNU OpenMP's default is 300,000: threads that wait for one whose core another program has taken
# then delay it further, and steps take tens of times as long. About 15 µs of spinning are enough
# where no other program runs.
SPIN_COUNT = "1000"
# How long the system may take to end processes that were killed: freeing a GPU's memory takes time.
GONE_S = 30.0
# How long a process may take to end before it is killed.
PATIENCE_S = 5.0


class LocalLauncher(Launcher):
    """Runs functions of the worker one after the other, for they share the machine.

    Only the ranks of a trial run together.
    """

    def __init__(self) -> None:
        """Prepare the fork server; it starts with the first process.

        What it inherits is set in the environment of this process: see ``_prepare_environment``.
        """
        super().__init__()
        self._doing: dict[Any, str] = {}
        """The processes that run, each with the text of its last progress."""
        self._left: set[int] = set()
        """The process groups of workers that were ended, until nothing of them runs."""
        self.removed_variables = _prepare_environment()
        """Overrides of fp32 products that were in the environment, as NAME=VALUE."""
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([PRELOAD])

    def survey(self, gpus: tuple[str, ...] | None) -> Environment:
        environment: Environment = self.call(
            "bench.devices.survey:survey", gpus, silence_s=SURVEY_S
        )
        return replace(environment, removed_variables=self.removed_variables, variables=recorded())

    def cancel(self) -> None:
        for process in tuple(self._doing):
            lifetime.end_group(process)

    def call(self, target: str, *arguments: object, silence_s: float = SILENCE_S) -> Any:
        ending = self._run(target, arguments, silence_s=silence_s)
        if ending.kind == "usage":
            raise UsageError(ending.text)
        if ending.kind != "done":
            raise UsageError(f"The run cannot be prepared, because {target} failed: {ending.text}")
        return ending.value

    def run(self, trial: Trial, device: Device, on_message: OnMessage) -> Ending:
        """Run one trial, each of its ranks in a fresh process, and pass its records on."""
        placement = trial.cell.placement
        world = len(placement.members)
        if world == 1:
            return self.run_rank(trial, device, None, on_message)
        meeting = Rendezvous(
            rank=0, world=world, local_world=world, address="127.0.0.1", port=free_port()
        )
        ranks = []
        for number in range(world):
            index = placement.device_of(number)
            where = "CPU" if index is None else f"GPU {index}"
            rank = Rank(
                name=f"device {number + 1} of {world} ({where})",
                run=partial(self.run_rank, trial, device, replace(meeting, rank=number)),
                halt=self.cancel,  # all of them end
            )
            ranks.append(rank)
        return run_ranks(ranks, on_message)

    def run_rank(
        self, trial: Trial, device: Device, rendezvous: Rendezvous | None, on_message: OnMessage
    ) -> Ending:
        """Run one rank of a trial in a fresh process; the others are started elsewhere."""
        suite = trial.cell.suite
        return self._run(
            "bench.worker.worker:run_trial",
            (trial, device, self.workspace, rendezvous),
            on_message=on_message,
            silence_s=trial.silence_s,
            source=Path(suite.file) if suite.file else ROOT / "suites" / f"{suite.name}.py",
        )

    def _run(
        self,
        target: str,
        arguments: tuple[Any, ...],
        *,
        silence_s: float,
        on_message: OnMessage | None = None,
        source: Path | None = None,
    ) -> Ending:
        """Call a function, ``module:name``, in a fresh process.

        Args:
            target: the function.
            arguments: of the function.
            silence_s: how long it may be silent.
            on_message: takes what the function sends, which then gets one more argument, a function
                that sends; None of a function that sends nothing.
            source: the user's file, of which a failure names the line.
        """
        self._require_nothing_left()
        # The launcher's own folder, so that a process that is killed leaves nothing behind.
        with tempfile.TemporaryDirectory(prefix="ampmeter-", ignore_cleanup_errors=True) as folder:
            log = Path(folder) / "log"
            kills = oom_kills()
            receiving, sending = self._context.Pipe(duplex=False)
            try:
                call = (sending, str(log), f"{folder}/compiled", target, arguments)
                process = self._start(call, sends=on_message is not None)
            except (EOFError, OSError) as error:
                why = str(error) or "the fork server was killed"
                return Ending(kind="lost", text=f"the process could not be started: {why}")
            patience_s = 0.0
            try:
                self._doing[process] = ""
                sending.close()
                ending = self._listen(process, receiving, on_message, silence_s)
                if ending is not None and ending.kind == "timeout":
                    _ask_where(process)
                else:
                    patience_s = PATIENCE_S
            finally:
                receiving.close()
                doing = self._doing.pop(process, "")
                self._stop(process, patience_s)
            if ending is None:
                kind, how = exit_cause(process.exitcode, kills)
                if process.exitcode == SERVER_LOST:
                    kind = "lost"
                    how = f"{how}, as if the fork server was killed"
                ending = Ending(kind=kind, text=f"the process ended without a message, {how}")
            if ending.kind in SELF_EXPLANATORY:
                return ending
            output = printed(log)
            last_progress = None if ending.kind in ("error", "import") else doing
            text = reason(ending.text, output, last_progress, source)
            return replace(ending, text=text, log=output)

    def _start(self, call: tuple[Any, ...], *, sends: bool) -> Any:
        """Start a process, and the fork server if it does not run.

        Ctrl-C does not wait until the server has imported torch.

        Raises:
            EOFError, OSError: the fork server could not start, could not fork, or was killed
            meanwhile.
        """
        process = self._context.Process(
            target=_serve, args=call, kwargs={"sends": sends}, daemon=True
        )
        try:
            # The worker, a child of the server, lets SIGINT through when what it prints goes to its
            # log.
            with own_modules_first(), lifetime.sigint_held():
                forkserver.ensure_running()
            process.start()
        except KeyboardInterrupt:  # half a process may have been started; it ends with its server
            _kill_fork_server()
            raise
        return process

    def _stop(self, process: Any, patience_s: float) -> None:
        """Let a process end by itself for ``patience_s``; then kill it with what it has started."""
        try:
            process.join(timeout=patience_s)
        finally:
            self._left.add(process.pid)
            lifetime.end_group(process)
        process.join(GONE_S)
        self._wait_until_gone()

    def _require_nothing_left(self) -> None:
        """Wait for what an earlier process has left.

        Raises:
            UsageError: it cannot be ended; it may hold a device, and measurements next to it would
                be wrong.
        """
        left = self._wait_until_gone()
        if left:
            pids = ", ".join(map(str, left))
            raise UsageError(
                f"Process {pids} of an earlier trial was killed and does not "
                "end, as one that waits for a device that does not answer. It may hold memory of "
                "the device, so nothing is measured next to it. End it or restart the machine, "
                "then go on with --resume."
            )

    def _wait_until_gone(self) -> list[int]:
        """Wait until nothing of the groups that were ended runs; return what does all the same."""
        deadline_s = time.monotonic() + GONE_S
        for group in tuple(self._left):
            while members := lifetime.group_members(group):
                if time.monotonic() > deadline_s:
                    return members
                time.sleep(0.02)
            self._left.discard(group)
        return []

    def _listen(
        self, process: Any, receiving: Connection, on_message: OnMessage | None, silence_s: float
    ) -> Ending | None:
        """Pass messages on until the process ends; return its ending, None if it sent none."""
        heard = time.monotonic()
        limit_s = silence_s
        while True:
            ready = wait([receiving, process.sentinel], timeout=min(POLL_S, limit_s))
            if receiving in ready:
                try:
                    message = receiving.recv()
                except (EOFError, OSError):
                    return None
                heard = time.monotonic()
                if isinstance(message, Ending):
                    return message
                if isinstance(message, Progress):
                    self._doing[process] = message.text
                    limit_s = max(silence_s, message.silence_s)
                if on_message is not None:
                    on_message(message)
            elif ready:  # it has ended, and what it started may hold its end of the pipe
                return None
            elif time.monotonic() - heard > limit_s:
                return Ending(kind="timeout", text=f"no sign of life for {limit_s:g} s")
            elif on_message is not None:
                on_message(Progress(text=""))


def _prepare_environment() -> tuple[str, ...]:
    """Set and unset variables of this process, for its fork server and all that it forks.

    Returns:
        The overrides of fp32 products that were unset, as NAME=VALUE.
    """
    if os.environ.keys().isdisjoint(SPIN_VARIABLES):
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    # The fork server is a new interpreter: it must find this package wherever it is started from.
    paths = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{paths}" if paths else str(ROOT)
    os.environ[lifetime.LAUNCHER] = str(os.getpid())
    return remove_overrides()


def _serve(connection: Connection, *arguments: Any, sends: bool) -> None:
    # The fork server ends when nobody holds this end of its pipe any more; a hung worker would hold
    # it forever.
    os.close(_fork_server()._forkserver_alive_fd)
    _fork_server()._forkserver_alive_fd = None
    os.setpgid(0, 0)  # so that all that it starts can be ended with it
    import_error = getattr(sys.modules.get(PRELOAD), "import_error", None)
    if import_error is not None:
        connection.send(import_error)
        return
    from bench.worker import worker

    worker.serve(connection, *arguments, sends=sends)


def _kill_fork_server() -> None:
    """End the fork server and all that it has forked; another is started when one is needed."""
    pid = _fork_server()._forkserver_pid
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _ask_where(process: Any) -> None:
    """Let a process that hangs print where it does: its log has the line, even of C code."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, STACK_SIGNAL)
        process.join(STACK_S)


def _fork_server() -> Any:
    return forkserver._forkserver  # there is no public way
