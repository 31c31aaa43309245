"""Processes, for tests: several that train together, each of which calls one function, whose
results come back in their order; and those that a session still has.
"""

import os
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import multiprocessing

from bench.launch.local import PRELOAD
from bench.launch.ranks import free_port
from bench.training import distributed


def together(
    folder: Path, function: Callable[..., Any], *arguments: Any, ranks: int = 2
) -> list[Any]:
    """Return what a function of a test module returns in each of several processes over gloo.

    Args:
        folder: takes what they return.
        function: called with the rank, then the arguments.
        arguments: what else to call it with.
        ranks: how many processes.
    """
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    given = (shared, folder, function, arguments)
    # The first is the harness's, which may use the same server.
    modules = [PRELOAD, __name__, function.__module__]
    multiprocessing.set_forkserver_preload(modules)  # which imports torch once for all
    multiprocessing.start_processes(_call, given, nprocs=ranks, start_method="forkserver")
    return [torch.load(folder / f"returned-{rank}.pt", weights_only=False) for rank in range(ranks)]


def _call(
    rank: int, shared: dict[str, str], folder: Path, function: Callable[..., Any], arguments: Any
) -> None:
    os.environ |= {**shared, "RANK": str(rank)}
    torch.set_num_threads(1)
    distributed.join(torch.device("cpu"), 600.0)
    torch.save(function(rank, *arguments), folder / f"returned-{rank}.pt")
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(
        0
        # as the harness ends them: taking the interpreter down while gloo's threads run may abort
        # (torch 2.15)
    )


def running(sessions: Collection[int]) -> list[psutil.Process]:
    """Return the processes of some sessions that still run."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        # One without a command line has ended; its session may be gone by now.
        with suppress(ProcessLookupError):
            if process.info["cmdline"] and os.getsid(process.pid) in sessions:
                found.append(process)
    return found
