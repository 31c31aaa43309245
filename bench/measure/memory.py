"""Peak memory, of the first step and of a steady state apart.

Where it went, tensor by tensor, is counted afterwards and elsewhere (``categories``), because counting takes memory.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import torch

from bench.devices.nvidia import Nvml, NvmlFailure, open_nvml
from bench.results.records import MemoryPeak

STEADY_STEPS = 3


def measure_peaks(
    step: Callable[[], object],
    device: torch.device,
    *,
    resident_before: int | None,
    driver_before: int | None,
    uuid: str | None,
    model_bytes: int,
) -> MemoryPeak:
    """Run one step, then a few more, and return the peaks of both.

    Args:
        step: does one training step.
        device: where it runs.
        resident_before: resident set in bytes before the model was built, but after a like one has made the libraries
            touch their code (CPU).
        driver_before: device memory in use, in bytes, before this process had a context on the device.
        uuid: the GPU's UUID, by which NVML knows it.
        model_bytes: what the model's parameters and buffers take.
    """
    peaks = (
        _cuda_peaks(step, device, driver_before, uuid) if device.type == "cuda" else _cpu_peaks(step, resident_before)
    )
    return replace(peaks, model_bytes=model_bytes)


def _cuda_peaks(
    step: Callable[[], object], device: torch.device, driver_before: int | None, uuid: str | None
) -> MemoryPeak:
    first = _cuda_peak(step, device, 1)
    steady = _cuda_peak(step, device, STEADY_STEPS)
    return MemoryPeak(
        first_peak_bytes=first["allocated_bytes.all.peak"],
        peak_allocated_bytes=steady["allocated_bytes.all.peak"],
        peak_reserved_bytes=steady["reserved_bytes.all.peak"],
        peak_active_bytes=steady["active_bytes.all.peak"],
        driver_used_bytes=driver_used_bytes(uuid, driver_before),
        # Counted since the process began; what the first step's trying of workspaces caused is not steady.
        allocator_retries=steady["num_alloc_retries"] - first["num_alloc_retries"],
    )


def _cuda_peak(step: Callable[[], object], device: torch.device, steps: int) -> dict[str, int]:
    torch.cuda.synchronize(device)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    for _ in range(steps):
        step()
    torch.cuda.synchronize(device)
    return torch.cuda.memory_stats(device)


def driver_memory_bytes(uuid: str | None) -> int | None:
    """Return the memory in use on a GPU as its driver sees it, or None where that cannot be told."""
    return _ask_driver(lambda nvml, known: nvml.memory_used_bytes(known), uuid)


def driver_used_bytes(uuid: str | None, before: int | None) -> int | None:
    """Return what the driver says this process holds on a GPU: its context, its libraries and all that it reserved.

    By process where the driver tells that, because others come and go meanwhile; else what is in use above ``before``.
    """
    own = _ask_driver(_own_bytes, uuid)
    if own is not None:
        return own
    used = driver_memory_bytes(uuid)
    # Less than before: others have gone meanwhile, and what is ours cannot be told.
    return None if used is None or before is None or used < before else used - before


def _own_bytes(nvml: Nvml, uuid: str) -> int | None:
    calls = nvml.calls
    handle = calls.target(uuid).handle
    # By version, for the function without one raises what is no NVMLError on drivers before 510.
    found = calls.call(uuid, "nvmlDeviceGetComputeRunningProcesses_v3", handle)
    if found is None:
        found = calls.call(uuid, "nvmlDeviceGetComputeRunningProcesses_v2", handle)
    processes = found or []
    # A process that does not exist here has its id from outside a container, and then ours may be somebody's too.
    if not all(psutil.pid_exists(process.pid) for process in processes):
        return None
    return next((process.usedGpuMemory for process in processes if process.pid == os.getpid()), None)


def _ask_driver(question: Callable[[Nvml, str], int | None], uuid: str | None) -> int | None:
    nvml = open_nvml() if uuid else None
    if nvml is None or uuid is None:
        return None
    with nvml:
        try:
            return question(nvml, uuid)
        except NvmlFailure as failure:
            print(f"The driver does not tell how much memory is used: {failure}")
            return None


def _cpu_peaks(step: Callable[[], object], resident_before: int | None) -> MemoryPeak:
    first = _cpu_peak(step, 1)
    steady = _cpu_peak(step, STEADY_STEPS)
    if resident_before is None or first is None or steady is None:
        return MemoryPeak()
    # Where memory is short, the system takes pages from us while we measure, and a small model's rise is below 0.
    return MemoryPeak(
        first_peak_bytes=max(0, first - resident_before), peak_resident_bytes=max(0, steady - resident_before)
    )


def _cpu_peak(step: Callable[[], object], steps: int) -> int | None:
    gc.collect()
    _return_free_memory()
    can_reset = reset_peak_resident()
    for _ in range(steps):
        step()
    return peak_resident_bytes() if can_reset else None


def reset_peak_resident() -> bool:
    """Reset this process's peak resident set to what it holds now; False where the kernel does not offer that.

    Source: proc(5), /proc/[pid]/clear_refs, value 5.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def resident_bytes() -> int | None:
    """Return this process's resident set without freed memory, or None where /proc does not tell."""
    gc.collect()
    _return_free_memory()
    return _status_bytes("VmRSS")


def peak_resident_bytes() -> int | None:
    """Return this process's peak resident set since it was reset, or None where /proc does not tell."""
    return _status_bytes("VmHWM")


def _status_bytes(field: str) -> int | None:
    try:
        found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _return_free_memory() -> None:
    """Give freed memory back to the system, the CPU's counterpart of emptying the allocator's cache."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return  # not glibc


def model_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of a model's parameters and buffers."""
    tensors = [*model.parameters(), *model.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
