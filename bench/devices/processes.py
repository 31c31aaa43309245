"""The other processes on the GPUs, before a run: by gpustat on NVIDIA's, by AMD SMI on AMD's.

gpustat is imported only here, and only where there is a driver, because its import replaces functions of pynvml: call
this in the process that plans, never in one that measures.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from bench.devices.amd import open_amdsmi
from bench.devices.monitor import DeviceLostError
from bench.devices.nvidia import nvml_problem
from bench.results.records import Environment
from bench.spec.errors import UsageError

DISPLAY_SERVERS = frozenset({"X", "Xorg", "Xwayland", "gnome-shell", "kwin_wayland", "kwin_x11", "sway", "weston"})
"""Programs that draw the desktop; they are on the GPU all the time and nobody can send them away for a run."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """A process of somebody on a GPU; None is unknown."""

    pid: int
    user: str | None
    command: str | None
    """Name of the program, without its folder and arguments."""
    memory_bytes: int | None
    """GPU memory that it holds, to the MiB."""


def neighbours() -> dict[str, list[Neighbour]]:
    """Return the processes on each GPU, by the GPU's UUID, without this process and without display servers.

    Returns:
        An empty list for a GPU that is free. A GPU of which it cannot be known is left out; without a driver that is
        every one. Processes of other containers are not seen.
    """
    if nvml_problem() is not None:
        return _on_amd()
    try:
        import gpustat
        from gpustat.nvml import pynvml
    except ImportError as error:
        _log.warning("Who is on the GPUs is not known: gpustat cannot be imported: %s", error)
        return {}
    try:
        gpus = gpustat.new_query()
    except pynvml.NVMLError as error:
        _log.warning("Who is on the GPUs is not known: gpustat's query failed: %s", error)
        return {}
    # A lost GPU has neither UUID nor processes; one that hides its processes from us has None.
    return {gpu.uuid: _others(gpu.processes) for gpu in gpus if gpu.available and gpu.processes is not None}


def _on_amd() -> dict[str, list[Neighbour]]:
    users: dict[str, list[Neighbour]] = {}
    smi = open_amdsmi()
    if smi is None:
        return users
    with smi:
        for gpu in smi.gpus():
            try:
                processes = smi.process_bytes(gpu.uuid)
            except DeviceLostError:
                continue
            if processes is not None:
                found = [_by_psutil(pid, size) for pid, size in processes.items() if pid != os.getpid()]
                users[gpu.uuid] = [one for one in found if one.command not in DISPLAY_SERVERS]
    return users


def _by_psutil(pid: int, memory_bytes: int | None) -> Neighbour:
    user = command = None
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        command, user = process.name(), process.username()
    return Neighbour(pid=pid, user=user, command=command, memory_bytes=memory_bytes)


def _others(processes: list[dict[str, Any]]) -> list[Neighbour]:
    found = []
    for process in processes:
        if process["pid"] == os.getpid() or process["command"] in DISPLAY_SERVERS:
            continue
        memory_mib = process["gpu_memory_usage"]
        found.append(
            Neighbour(
                pid=process["pid"],
                user=_known(process["username"]),
                command=_known(process["command"]),
                memory_bytes=None if memory_mib is None else memory_mib * 2**20,
            )
        )
    return found


def _known(word: str) -> str | None:
    """Return None for gpustat's way of saying unknown."""
    return None if word == "?" else word


def describe(neighbours: Mapping[str, list[Neighbour]], names: Mapping[str, str] | None = None) -> str:
    """Say in one sentence per busy GPU who is on it; an empty text when none is busy.

    Args:
        neighbours: what ``neighbours`` returned.
        names: what to call the GPUs, by UUID, such as "GPU 0"; without it, their UUIDs.
    """
    return " ".join(
        f"{(names or {}).get(uuid, uuid)} is in use by {_list([_describe(one) for one in found])}."
        for uuid, found in neighbours.items()
        if found
    )


def busy(environment: Environment, exclusive: bool) -> list[str]:
    """Return a warning if other processes use a GPU of the run.

    Raises:
        UsageError: with ``exclusive``, if a GPU is in use or its processes are unknown.
    """
    boards = [device for device in environment.devices if device.kind != "cpu"]
    if not boards:
        return []
    names = {uuid: f"GPU {word}" for device in boards for uuid, word in device.gpus.items()}
    known = neighbours()
    text = describe({uuid: others for uuid, others in known.items() if uuid in names}, names)
    if text and exclusive:
        raise UsageError(f"{text} Wait, name other GPUs, or leave out --exclusive.")
    unknown = {name: None for uuid, name in names.items() if uuid not in known}
    unknown |= {f"GPU {device.placement}": None for device in boards if not device.gpus}
    if exclusive and unknown:
        raise UsageError(f"Who is on {', '.join(unknown)} cannot be told; leave out --exclusive.")
    return [text] if text else []


def _describe(neighbour: Neighbour) -> str:
    memory = _size(neighbour.memory_bytes)
    return f"{neighbour.user or 'somebody'} ({neighbour.command or 'a process'}, pid {neighbour.pid}, {memory})"


def _size(size: int | None) -> str:
    if size is None:
        return "memory unknown"
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _list(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
