"""One process: a trial in, records out, on a channel of their own; stdout and stderr go to a log.

The fork server imports this module, and torch with it, once. Every worker is a fork of it in which
no device has been used yet.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import time
import traceback
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from threading import RLock
from typing import Any

import torchvision  # noqa: F401 - and torch with it, before the first fork

from bench import phases
from bench.data import prepare
from bench.devices.backend import device_at
from bench.results.endings import Ending
from bench.results.records import Device, Message, Send, TrialResult, utc_now
from bench.spec import lifetime
from bench.spec.data_source import DataSource, PreparedData
from bench.spec.errors import UsageError, first_line
from bench.spec.phases import PHASES
from bench.spec.placement import Rendezvous
from bench.spec.suite import Data
from bench.spec.trial import Trial
from bench.training import distributed
from bench.worker.failures import failure, print_stacks

phases.load_all()


def serve(
    connection: Connection,
    log: str,
    compiled: str,
    target: str,
    arguments: tuple[Any, ...],
    *,
    sends: bool,
) -> None:
    """Call a function in this process, and send back its messages and its value or error.

    Args:
        connection: the channel back.
        log: path of the file that takes what is printed.
        compiled: path of the folder that takes what torch.compile makes. It is new, so that the
            time of compiling does not depend on earlier processes; the caller removes it.
        target: the function as ``module:name``.
        arguments: of the function.
        sends: whether it gets one more, a function that sends a message.
    """
    try:
        _print_to(log)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = compiled
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        # torch.compile makes progress bars. Their own lock is a semaphore of the system, which a
        # process that is killed leaves behind, with a warning at the end.
        bars = sys.modules.get("tqdm")
        if bars is not None:
            bars.tqdm.set_lock(RLock())
        gc.freeze()  # what the fork server imported is never garbage
        module, name = target.split(":")
        function = getattr(importlib.import_module(module), name)
        value = function(*arguments, connection.send) if sends else function(*arguments)
        connection.send(Ending(kind="done", value=value))
    except BaseException as error:  # a model may end the interpreter, or raise what is no Exception
        failed = failure(error)
        if failed.kind == "error":
            traceback.print_exc()
        connection.send(failed)
    finally:
        lifetime.end_children()
        sys.stdout.flush()
        sys.stderr.flush()
        connection.close()


def run_trial(
    trial: Trial,
    device: Device,
    workspace: Path | None,
    rendezvous: Rendezvous | None,
    send: Send,
) -> None:
    """Run one trial and send its records.

    Training keeps its checkpoints in ``workspace``; None keeps none. The ``rendezvous`` says which
    rank of a trial on several devices this process is; None of a trial on one.
    """
    started = utc_now()
    begun_s = time.monotonic()

    def stamped(message: Message) -> None:
        if isinstance(message, TrialResult):
            message = replace(message, started=started, wall_s=time.monotonic() - begun_s)
        send(message)

    checkpoint = None
    if workspace is not None and PHASES[trial.phase].checkpoints:
        checkpoint = workspace / trial.checkpoint
    if rendezvous is not None:
        distributed.announce(rendezvous)
        here = device_at(trial.cell.placement.device_of(rendezvous.rank))
        distributed.join(here, trial.silence_s)
    phases.run(trial, device, stamped, checkpoint)
    # Rank 0 serves the others' store, so none leaves before all are done.
    distributed.gathered(None)


def prepare_data(data: Data, source: DataSource) -> PreparedData:
    """Download or decode a suite's images, if they are not there yet, or count a text's tokens."""
    try:
        return prepare(data, source)
    except OSError as error:
        raise UsageError(
            f"The data of {source} cannot be prepared in '{source.directory}': {first_line(error)}."
        ) from error


def _print_to(log: str) -> None:
    """Send this process's stdout and stderr, those of C code too, to a file."""
    try:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except FileNotFoundError:  # the launcher was stopped meanwhile, and has removed the folder
        os._exit(1)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    print_stacks()
