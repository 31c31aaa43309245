"""Several processes that train together, one on each device, started by the worker of their trial.

A worker is a daemonic process, which may have no children of multiprocessing's kind. These are programs of their own,
``python -m bench.ranks``, each with a pipe to the worker; torch.distributed joins them by the usual variables.
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
from contextlib import ExitStack
from dataclasses import fields, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from bench.data import Share
from bench.findings import MemoryPeak
from bench.nodes import Rendezvous
from bench.records import Device, Done, Failed, Message, TrialResult
from bench.spec import UsageError
from bench.technique_names import UnsupportedError
from bench.trial import Placement, Trial

LIGHTNING, JOINED = "bench.phases.training:run", "bench.worker:run_rank"
"""What a process runs: Lightning's Trainer joins its own; a placement of several devices is joined by the worker."""


def run(
    trial: Trial,
    device: Device,
    send: Callable[[Message], None],
    ranks: int,
    rendezvous: Rendezvous | None = None,
) -> None:
    """Run a trial in ``ranks`` processes and pass on what the first of them sends; memory of all of them.

    With a ``rendezvous``, they are a part of those that train together, and the others are started elsewhere.

    They are on the devices of the trial's placement, or, where Lightning trains on more than that names, on its GPU and
    those that follow it. Nothing is kept in checkpoints.

    Raises:
        UsageError: there are not as many GPUs.
        RuntimeError: a process failed; the others are ended.
    """
    _require_devices(trial, ranks)
    with ExitStack() as stack:
        here = rendezvous or alone(ranks)
        processes = []
        pipes: dict[Connection, int] = {}
        peaks: dict[int, TrialResult] = {}
        for rank in range(ranks):
            ours, theirs = Pipe()
            processes.append(_start(theirs, here, rank))
            stack.callback(_stop, processes[-1])
            theirs.close()
            pipes[stack.enter_context(ours)] = rank
            ours.send((_placed(trial, rank), replace(device, energy=None)))  # one counter would be a part of it
        while pipes:
            for ready in wait(list(pipes)):
                assert isinstance(ready, Connection)
                rank = pipes[ready]
                message = _receive(ready)
                if isinstance(message, Failed):
                    raise _ERRORS.get(message.kind, RuntimeError)(message.text)
                if message is None:
                    raise RuntimeError(f"the process on device {rank + 1} of {ranks} ended without a word")
                if isinstance(message, Done):
                    del pipes[ready]
                elif isinstance(message, TrialResult) and message.memory is not None:
                    peaks[rank] = message
                    if len(peaks) == ranks:
                        send(replace(peaks[0], memory=_largest([peaks[one].memory for one in range(ranks)])))
                elif rank == 0:
                    send(message)


def alone(ranks: int) -> Rendezvous:
    """Return where processes meet that are all of one machine."""
    return Rendezvous(first=0, local=ranks, world=ranks, address="127.0.0.1", port=_free_port())


def main() -> None:
    """Run one of the processes: a trial in, records out."""
    connection = Connection(int(sys.argv[1]))
    share = Share(rank=int(os.environ["RANK"]), ranks=int(os.environ["WORLD_SIZE"]))
    trial, device = connection.recv()
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    module, name = (JOINED if len(trial.cell.placement.members) > 1 else LIGHTNING).split(":")
    try:
        getattr(importlib.import_module(module), name)(trial, device, connection.send, share=share)
        connection.send(Done())
    except Exception as error:
        traceback.print_exc()
        connection.send(_failed(error))
        sys.exit(1)


_ERRORS: dict[str, type[Exception]] = {"usage": UsageError, "unsupported": UnsupportedError, "oom": MemoryError}
"""What a process's last word becomes in the worker."""


def _failed(error: Exception) -> Failed:
    if isinstance(error, UnsupportedError):
        return Failed(kind="unsupported", text=str(error))
    if isinstance(error, UsageError):
        return Failed(kind="usage", text=str(error))
    full = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return Failed(kind="oom" if full else "error", text=f"{type(error).__name__}: {error}")


def _largest(found: list[MemoryPeak | None]) -> MemoryPeak:
    """Return the largest of each figure over the devices, and the sum of their peaks."""
    every = [peak for peak in found if peak is not None]

    def most(name: str) -> int | None:
        values = [value for peak in every if (value := getattr(peak, name)) is not None]
        return max(values) if values else None

    names = [field.name for field in fields(MemoryPeak) if field.name != "all_devices_bytes"]
    peaks = [peak.peak_allocated_bytes or peak.peak_resident_bytes for peak in every]
    total = sum(peak or 0 for peak in peaks) if all(peak is not None for peak in peaks) else None
    return MemoryPeak(**{name: most(name) for name in names}, all_devices_bytes=total)


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
        [sys.executable, "-m", "bench.ranks", str(theirs.fileno())],
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
    if index is not None and index + ranks > torch.cuda.device_count():
        raise UsageError(
            f"Training on {ranks} devices from GPU {index} on needs GPU {index + ranks - 1}, "
            f"and there are {torch.cuda.device_count()}. Set fewer devices, or place it on an earlier one."
        )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    main()
