"""Start the processes of a trial on several devices, one per device, from the trial's worker.

A worker is a daemonic process, which multiprocessing allows no children. Each rank is therefore a program of its own,
this module's ``main``, with a pipe to the worker; the variables of torch.distributed name its rank.
"""

from __future__ import annotations

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

from bench.data import Shard
from bench.devices.backend import gpu_count
from bench.results.records import Device, Done, Failed, MemoryPeak, Message, TrialResult
from bench.spec.errors import UnsupportedError, UsageError
from bench.spec.trial import Placement, Rendezvous, Trial
from bench.training.failures import ErrorReport, exit_cause, failure, is_secondary, oom_kills, print_stacks

LIGHTNING, JOINED = "bench.phases.train:run", "bench.worker.worker:run_rank"
"""What a rank runs: Lightning joins its ranks itself; those of a placement of several devices are joined here."""
RANK = """
import os, sys
from bench.spec import lifetime
lifetime.end_with(int(sys.argv[1]))
lifetime.tie_forks()
from bench.training.rank_launcher import main
main()
"""
"""The program of a rank: it ends with its worker from its first moment, for importing torch takes seconds."""
END_S = 10.0
"""How long a rank that has closed its pipe may take to end: freeing much memory takes time."""
GRACE_S = 2.0
"""Grace period for the root-cause error after a rank reports a lost peer."""


class RankError(RuntimeError):
    """A rank failed."""

    def __init__(self, failed: Failed, output: str = "") -> None:
        """Keep the failure and the end of the rank's output."""
        super().__init__(failed.text)
        self.failed, self.output = failed, output


def run(
    trial: Trial,
    device: Device,
    send: Callable[[Message], None],
    ranks: int,
    rendezvous: Rendezvous | None = None,
    *,
    checkpoint: Path | None = None,
) -> None:
    """Run a trial in ``ranks`` processes and pass on the records of the first, with the memory of all.

    The ranks use the devices of the trial's placement. If Lightning trains on more devices than the placement names,
    they use its GPU and the following ones. The first rank keeps its training in ``checkpoint``, if that is given. With
    a ``rendezvous``, other ranks of the trial are started elsewhere.

    Raises:
        UsageError: there are too few GPUs, or a rank raised one.
        RankError: a rank failed; the others have been ended.
    """
    _require_devices(trial, ranks)
    with ExitStack() as stack:
        here, kills = rendezvous or alone(ranks), oom_kills()
        processes: list[subprocess.Popen[bytes]] = []
        pipes: dict[Connection, int] = {}
        peaks: dict[int, TrialResult] = {}
        secondary: list[tuple[ErrorReport, str]] = []
        timeout_s: float | None = None
        for rank in range(ranks):
            ours, theirs = Pipe()
            processes.append(_start(theirs, here, rank))
            stack.callback(_stop, processes[-1])
            theirs.close()
            pipes[stack.enter_context(ours)] = rank
            own = device if device.uuids else replace(device, energy=None)  # one node's energy would be a part
            with suppress(OSError):  # the rank has ended already; the loop below reports it
                ours.send((_placed(trial, rank), own, checkpoint))
        while pipes and (ready := wait(list(pipes), timeout_s)):
            heard = [(one, _receive(one)) for one in ready if isinstance(one, Connection)]
            # Ranks that died come first: the others' errors may be that they lost this one.
            for one, message in sorted(heard, key=lambda pair: pair[1] is not None):
                rank = pipes[one]
                if message is None:
                    raise _lost(processes[rank], kills, _name(trial, here, rank))
                if isinstance(message, ErrorReport) and message.secondary:
                    del pipes[one]
                    secondary.append((message, _name(trial, here, rank)))
                    timeout_s = GRACE_S
                elif isinstance(message, ErrorReport):
                    _raise(message, _name(trial, here, rank))
                elif isinstance(message, Done):
                    del pipes[one]
                elif isinstance(message, TrialResult) and message.memory is not None:
                    peaks[rank] = message
                    if len(peaks) == ranks:
                        memory = MemoryPeak.of_all([one.memory for one in peaks.values() if one.memory])
                        send(replace(peaks[0], memory=memory))
                elif rank == 0:
                    send(message)
        for report, name in secondary:
            _raise(report, name)


def alone(ranks: int) -> Rendezvous:
    """Return the rendezvous of ranks that are all started here."""
    return Rendezvous(first=0, local=ranks, world=ranks, address="127.0.0.1", port=_free_port())


def main() -> None:
    """Run one rank: a trial in, records out."""
    connection = Connection(int(sys.argv[-1]))
    shard = Shard(rank=int(os.environ["RANK"]), ranks=int(os.environ["WORLD_SIZE"]))
    trial, device, checkpoint = connection.recv()
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    print_stacks()
    module, name = (JOINED if len(trial.cell.placement.members) > 1 else LIGHTNING).split(":")
    try:
        getattr(importlib.import_module(module), name)(trial, device, connection.send, checkpoint, shard)
        connection.send(Done())
    except BaseException as error:  # a model may end the interpreter
        connection.send(
            ErrorReport(failed=failure(error), output=traceback.format_exc(), secondary=is_secondary(error))
        )
        sys.exit(1)


def _name(trial: Trial, here: Rendezvous, local_rank: int) -> str:
    """Return a device's name for error messages."""
    rank, place = here.first + local_rank, trial.cell.placement
    joined = len(place.members) > 1
    index = place.device_of(rank) if joined else None if place.index is None else place.index + rank
    return f"device {rank + 1} of {here.world} ({'CPU' if index is None else f'GPU {index}'})"


def _raise(report: ErrorReport, name: str) -> NoReturn:
    """Raise a rank's error; one that concerns all ranks alike does not name the device."""
    if report.failed.kind == "unsupported":
        raise UnsupportedError(report.failed.text)
    if report.failed.kind == "usage":
        raise UsageError(report.failed.text)
    raise RankError(replace(report.failed, text=f"{name}: {report.failed.text}"), report.output)


def _lost(process: subprocess.Popen[bytes], kills: int | None, name: str) -> RankError:
    """Return the error of a rank that died without a report."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    kind, how = exit_cause(process.poll(), kills)
    return RankError(Failed(kind="oom" if kind == "oom" else "error", text=f"{name} ended without a message, {how}"))


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
        [sys.executable, "-c", RANK, str(os.getpid()), str(theirs.fileno())],
        env=os.environ | environment,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # every rank has reported, or one has failed and the others wait for it
    process.wait()


def _end_with(connection: Connection) -> None:
    """End this process when its worker ends."""
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
    """Return the trial placed on the rank's own GPU."""
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
