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
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from bench.data import Share
from bench.records import Device, Done, Failed, Message
from bench.spec import UsageError
from bench.trial import Placement, Trial

PHASE = "bench.phases.training:run"


def run(trial: Trial, device: Device, send: Callable[[Message], None], ranks: int) -> None:
    """Run a training trial in ``ranks`` processes and pass on what the first of them sends.

    On GPUs they are on the one that the trial is placed on and those that follow it. Nothing is kept in checkpoints.

    Raises:
        UsageError: there are not as many GPUs.
        RuntimeError: a process failed; the others are ended.
    """
    _require_devices(trial, ranks)
    with ExitStack() as stack:
        port = _free_port()
        processes = []
        pipes: dict[Connection, int] = {}
        for rank in range(ranks):
            ours, theirs = Pipe()
            processes.append(_start(theirs, port, Share(rank=rank, ranks=ranks)))
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
                    raise UsageError(message.text) if message.kind == "usage" else RuntimeError(message.text)
                if message is None:
                    raise RuntimeError(f"the process on device {rank + 1} of {ranks} ended without a word")
                if isinstance(message, Done):
                    del pipes[ready]
                elif rank == 0:
                    send(message)


def main() -> None:
    """Run one of the processes: a trial in, records out."""
    connection = Connection(int(sys.argv[1]))
    share = Share(rank=int(os.environ["RANK"]), ranks=int(os.environ["WORLD_SIZE"]))
    trial, device = connection.recv()
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    module, name = PHASE.split(":")
    try:
        getattr(importlib.import_module(module), name)(trial, device, connection.send, share=share)
        connection.send(Done())
    except Exception as error:
        traceback.print_exc()
        usage = isinstance(error, UsageError)
        text = str(error) if usage else f"{type(error).__name__}: {error}"
        connection.send(Failed(kind="usage" if usage else "error", text=text))
        sys.exit(1)


def _start(theirs: Connection, port: int, share: Share) -> subprocess.Popen[bytes]:
    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(share.rank),
        "LOCAL_RANK": str(share.rank),
        "WORLD_SIZE": str(share.ranks),
        "LOCAL_WORLD_SIZE": str(share.ranks),
        "OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // share.ranks)),
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
    if index is None:
        return trial
    return replace(trial, cell=replace(trial.cell, placement=Placement(name=str(index + rank))))


def _require_devices(trial: Trial, ranks: int) -> None:
    index = trial.cell.placement.index
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
