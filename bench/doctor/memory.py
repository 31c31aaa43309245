"""Self-tests of memory: whether what a step holds is in its peak, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bench.devices.backend import backend_of
from bench.doctor.arms import SMALL, build_runner, torch_device
from bench.measure import memory
from bench.phases.context import enter
from bench.results.records import Device, MemoryPeak, Message

MIB = 2**20


def peak(device: Device, held_bytes: int, _send: Callable[[Message], None]) -> MemoryPeak:
    """Return the peaks of a small training step that also holds ``held_bytes``, as the memory phase measures them."""
    width, batch_size = SMALL
    before = memory.driver_memory_bytes(device.uuid)  # before anything can make a context
    place = torch_device(device)
    enter("fp32", place)
    resident = None
    if not device.is_gpu:
        # The first step makes the system load code of the libraries, which is not the step's.
        build_runner(device, "first", "fp32", width=width, batch_size=2).run(1)
        resident = memory.resident_bytes()
    runner = build_runner(device, "fp32", "fp32", width=width, batch_size=batch_size)

    def step() -> None:
        held = torch.ones(held_bytes, dtype=torch.uint8, device=place)  # written to, or it would not be resident
        runner.run(1)
        del held

    return memory.measure_peaks(
        step,
        place,
        resident_before=resident,
        driver_before=before,
        uuid=device.uuid,
        model_bytes=memory.model_bytes(runner.arm.model),
    )


def take(device: Device, taken_bytes: int, _send: Callable[[Message], None]) -> bool:
    """Use that much memory and end; False where less than twice that is free."""
    place = torch_device(device)
    free = backend_of(place).free_bytes()
    if free < 2 * taken_bytes:
        return False
    return bool(torch.ones(taken_bytes, dtype=torch.uint8, device=place)[-1] == 1)
