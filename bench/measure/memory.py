"""Peak memory, of the first step and of a steady state apart.

Where it went, tensor by tensor, is counted afterwards and elsewhere (``categories``), because counting takes memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import psutil
import torch

from bench.devices.backend import PeakMemory, backend_of
from bench.devices.cpu import Cpu
from bench.devices.monitor import DeviceLostError, Monitor, open_monitor
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
    first, steady = _peak(step, device, 1), _peak(step, device, STEADY_STEPS)
    if first is None or steady is None:
        return MemoryPeak(model_bytes=model_bytes)
    if not backend_of(device).is_gpu:
        if resident_before is None or first.resident is None or steady.resident is None:
            return MemoryPeak(model_bytes=model_bytes)
        # Where memory is short, the system reclaims pages meanwhile, and a small model's rise is below 0.
        return MemoryPeak(
            first_peak_bytes=max(0, first.resident - resident_before),
            peak_resident_bytes=max(0, steady.resident - resident_before),
            model_bytes=model_bytes,
        )
    return MemoryPeak(
        first_peak_bytes=first.allocated,
        peak_allocated_bytes=steady.allocated,
        peak_reserved_bytes=steady.reserved,
        peak_active_bytes=steady.active,
        driver_used_bytes=driver_used_bytes(uuid, driver_before),
        # Counted since the process began; retries of the first step, which tries workspaces, are not steady.
        allocator_retries=None if steady.retries is None else steady.retries - (first.retries or 0),
        model_bytes=model_bytes,
    )


def _peak(step: Callable[[], object], device: torch.device, steps: int) -> PeakMemory | None:
    backend = backend_of(device)
    can_reset = backend.reset_peak_memory()
    for _ in range(steps):
        step()
    return backend.peak_memory() if can_reset else None


def driver_memory_bytes(uuid: str | None) -> int | None:
    """Return the memory in use on a GPU as its driver sees it, or None where that cannot be told."""
    return _ask_driver(lambda monitor, known: monitor.memory_used_bytes(known), uuid)


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


def _own_bytes(monitor: Monitor, uuid: str) -> int | None:
    processes = monitor.process_bytes(uuid) or {}
    # A process that does not exist here has its id from outside a container, and then ours may be somebody's too.
    if not all(psutil.pid_exists(pid) for pid in processes):
        return None
    return processes.get(os.getpid())


def _ask_driver(question: Callable[[Monitor, str], int | None], uuid: str | None) -> int | None:
    monitor = open_monitor() if uuid else None
    if monitor is None or uuid is None:
        return None
    with monitor:
        try:
            return question(monitor, uuid)
        except DeviceLostError as failure:
            print(f"The driver does not tell how much memory is used: {failure}")
            return None


def resident_bytes() -> int | None:
    """Return this process's resident set without freed memory; None where the system has no such figure."""
    return Cpu(torch.device("cpu")).resident_bytes()


def model_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of a model's parameters and buffers."""
    tensors = [*model.parameters(), *model.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
