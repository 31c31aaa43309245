"""Several processes that train together, one on each device, started by the worker of their trial.

A worker is a daemonic process, which may have no children of multiprocessing's kind. These are programs of their own,
``python -m`` this module, each with a pipe to the worker; torch.distributed joins them by the usual variables.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import torch

from bench.data import Share
from bench.devices.backend import gpu_count
from bench.results.records import Device, Done, Failed, MemoryPeak, Message, TrialResult
from bench.spec.errors import UnsupportedError, UsageError
from bench.spec.trial import Placement, Rendezvous, Trial
from bench.training.failures import ErrorReport, exit_cause, failure, is_echo, oom_kills

LIGHTNING, JOINED = "bench.phases.train:run", "bench.worker.worker:run_rank"
"""What a process runs: Lightning's Trainer joins its own; a placement of several devices is joined by the worker."""
END_S = 10.0
"""How long a process that has closed its pipe may take to end: one that holds much memory does not at once."""

ECHO_S = 2.0
"""After a process has told that it lost another, how long that one's own end may take to be heard."""


class RankError(RuntimeError):
    """One of the processes failed."""

    def __init__(self, failed: Failed, told: str = "") -> None:
        """Take what is to be said of it, and what the process printed at last."""
        super().__init__(failed.text)
        self.failed, self.told = failed, told


def run(
    trial: Trial,
    device: Device,
    send: Callable[[Message], None],
    ranks: int,
    rendezvous: Rendezvous | None = None,
    *,
    checkpoint: Path | None = None,
) -> None:
    """Run a trial in ``ranks`` processes and pass on what the first of them sends; memory of all of them.

    With a ``rendezvous``, they are a part of those that train together, and the others are started elsewhere.

    They are on the devices of the trial's placement, or, where Lightning trains on more than that names, on its GPU and
    those that follow it. The first keeps its training in ``checkpoint``, where there is one.

    Raises:
        UsageError: there are not as many GPUs, or a process raised one.
        RankError: a process failed; the others have been ended.
    """
    _require_devices(trial, ranks)
    with ExitStack() as stack:
        here, kills = rendezvous or alone(ranks), oom_kills()
        processes: list[subprocess.Popen[bytes]] = []
        pipes: dict[Connection, int] = {}
        peaks: dict[int, TrialResult] = {}
        echoes: list[tuple[ErrorReport, str]] = []
        patience_s: float | None = None
        for rank in range(ranks):
            ours, theirs = Pipe()
            processes.append(_start(theirs, here, rank))
            stack.callback(_stop, processes[-1])
            theirs.close()
            pipes[stack.enter_context(ours)] = rank
            own = device if device.uuids else replace(device, energy=None)  # one node's energy would be a part
            with suppress(OSError):  # it has ended already, which is heard below
                ours.send((_placed(trial, rank), own, checkpoint))
        while pipes and (ready := wait(list(pipes), patience_s)):
            heard = [(one, _receive(one)) for one in ready if isinstance(one, Connection)]
            # Who ended without a word comes first: the others' errors may be that they lost it.
            for one, message in sorted(heard, key=lambda pair: pair[1] is not None):
                rank = pipes[one]
                if message is None:
                    raise _lost(processes[rank], kills, _called(trial, here, rank))
                if isinstance(message, ErrorReport) and message.echo:
                    del pipes[one]
                    echoes.append((message, _called(trial, here, rank)))
                    patience_s = ECHO_S
                elif isinstance(message, ErrorReport):
                    _raise(message, _called(trial, here, rank))
                elif isinstance(message, Done):
                    del pipes[one]
                elif isinstance(message, TrialResult) and message.memory is not None:
                    peaks[rank] = message
                    if len(peaks) == ranks:
                        memory = MemoryPeak.of_all([one.memory for one in peaks.values() if one.memory])
                        send(replace(peaks[0], memory=memory))
                elif rank == 0:
                    send(message)
        for word, called in echoes:
            _raise(word, called)


def alone(ranks: int) -> Rendezvous:
    """Return where processes meet that are all of one machine."""
    return Rendezvous(first=0, local=ranks, world=ranks, address="127.0.0.1", port=_free_port())


def main() -> None:
    """Run one of the processes: a trial in, records out."""
    connection = Connection(int(sys.argv[1]))
    share = Share(rank=int(os.environ["RANK"]), ranks=int(os.environ["WORLD_SIZE"]))
    trial, device, checkpoint = connection.recv()
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    faulthandler.enable()
    module, name = (JOINED if len(trial.cell.placement.members) > 1 else LIGHTNING).split(":")
    try:
        getattr(importlib.import_module(module), name)(trial, device, connection.send, checkpoint, share)
        connection.send(Done())
    except Exception as error:
        connection.send(ErrorReport(failed=failure(error), told=traceback.format_exc(), echo=is_echo(error)))
        sys.exit(1)


def _called(trial: Trial, here: Rendezvous, local_rank: int) -> str:
    """Return what a reader may call one of the devices."""
    rank, place = here.first + local_rank, trial.cell.placement
    joined = len(place.members) > 1
    index = place.device_of(rank) if joined else None if place.index is None else place.index + rank
    return f"device {rank + 1} of {here.world} ({'CPU' if index is None else f'GPU {index}'})"


def _raise(word: ErrorReport, called: str) -> NoReturn:
    """Raise what a process said at last: what concerns all of them alike without its name."""
    if word.failed.kind == "unsupported":
        raise UnsupportedError(word.failed.text)
    if word.failed.kind == "usage":
        raise UsageError(word.failed.text)
    raise RankError(replace(word.failed, text=f"{called}: {word.failed.text}"), word.told)


def _lost(process: subprocess.Popen[bytes], kills: int | None, called: str) -> RankError:
    """Return the error of a process that has ended without a word."""
    with suppress(subprocess.TimeoutExpired):  # it has closed its pipe, and still lives
        process.wait(END_S)
    kind, how = exit_cause(process.poll(), kills)
    return RankError(Failed(kind="oom" if kind == "oom" else "error", text=f"{called} ended without a word, {how}"))


def _start(theirs: Connection, here: Rendezvous, local_rank: int) -> subprocess.Popen[bytes]:
    environment = {
        "MASTER_ADDR": here.address,
        "MASTER_PORT": str(here.port),
        "RANK": str(here.first + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(here.world),
        "LOCAL_WORLD_SIZE": str(here.local),
        "OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // here.local)),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "bench.training.rank_launcher", str(theirs.fileno())],
        env=os.environ | environment,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # all have said their last word, or one has failed, and the others wait for it in vain
    process.wait()


def _end_with(connection: Connection) -> None:
    """End this process when its worker does, which says nothing more after the trial."""
    try:
        connection.recv()
    except (EOFError, OSError):
        os._exit(1)


def _receive(connection: Connection) -> Any:
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None


def _placed(trial: Trial, rank: int) -> Trial:
    """Return the trial as the rank has it: on its own GPU."""
    index = trial.cell.placement.index
    if index is None or len(trial.cell.placement.members) > 1:
        return trial
    return replace(trial, cell=replace(trial.cell, placement=Placement(name=str(index + rank))))


def _require_devices(trial: Trial, ranks: int) -> None:
    index = None if len(trial.cell.placement.members) > 1 else trial.cell.placement.index
    if index is not None and index + ranks > gpu_count():
        raise UsageError(
            f"Training on {ranks} devices from GPU {index} on needs GPU {index + ranks - 1}, "
            f"and there are {gpu_count()}. Set fewer devices, or place it on an earlier one."
        )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    main()
