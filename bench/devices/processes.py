"""The processes of others on the GPUs, before a run: by gpustat.

gpustat is imported only here, and only where there is a driver, because its import replaces
functions of pynvml: call this in the process that plans, never in one that measures.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from bench.devices.monitor import monitor_problem
from bench.results.records import Environment

# Programs that draw the desktop; they are on the GPU all the time and nobody can send them away for
# a run.
DISPLAY_SERVERS = frozenset(
    {"X", "Xorg", "Xwayland", "gnome-shell", "kwin_wayland", "kwin_x11", "sway", "weston"}
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuProcess:
    """A process on a GPU."""

    pid: int
    user: str
    """``?`` is unknown, as gpustat says it."""
    command: str
    """Name of the program, without its folder and arguments; ``?`` is unknown."""
    memory_bytes: int | None
    """GPU memory that it holds; None is unknown."""

    def __str__(self) -> str:
        held = "memory unknown"
        if self.memory_bytes is not None:
            held = f"{self.memory_bytes / 2**30:.1f} GiB"
        return f"{self.user} ({self.command}, pid {self.pid}, {held})"


def gpu_processes() -> dict[str, list[GpuProcess]]:
    """Return the processes on each GPU, by the GPU's UUID.

    This process and display servers are left out.

    Returns:
        An empty list for a GPU that is free. GPUs whose processes are unknown are left out; without
        a driver those are all. Processes of other containers are not seen.
    """
    if monitor_problem():
        return {}
    try:
        import gpustat

        gpus = gpustat.new_query()
    except Exception as error:  # of NVML, or of gpustat, which refuses some packages beside it
        _log.warning("The processes on the GPUs are unknown: gpustat failed: %s", error)
        return {}
    processes: dict[str, list[GpuProcess]] = {}
    for gpu in gpus:
        # A lost GPU has neither UUID nor processes; one that hides its processes from us has None.
        if not gpu.available or gpu.processes is None:
            continue
        processes[gpu.uuid] = []
        for each in gpu.processes:
            if each["pid"] == os.getpid() or each["command"] in DISPLAY_SERVERS:
                continue
            memory_mib = each["gpu_memory_usage"]
            process = GpuProcess(
                pid=each["pid"],
                user=each["username"],
                command=each["command"],
                memory_bytes=None if memory_mib is None else memory_mib * 2**20,
            )
            processes[gpu.uuid].append(process)
    return processes


def busy(environment: Environment) -> list[str]:
    """Return a warning if other processes use a GPU of the run: a sentence for each such GPU."""
    names: dict[str, str] = {}
    for device in environment.devices:
        if device.is_gpu:
            names |= device.gpus
    if not names:
        return []
    sentences = []
    for uuid, processes in gpu_processes().items():
        if uuid in names and processes:
            users = ", ".join(map(str, processes))
            sentences.append(f"GPU {names[uuid]} is in use by {users}.")
    return [" ".join(sentences)] if sentences else []
