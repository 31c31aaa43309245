"""Self-tests of what NVML tells of a GPU: that it is the right one, and that its energy adds up."""

from __future__ import annotations

from collections.abc import Callable

from bench.devices.backend import gpu_count
from bench.devices.cuda import gpu_properties
from bench.devices.energy import NvmlMeter
from bench.devices.nvidia import NvmlFailure, open_nvml
from bench.doctor.arms import torch_device, training_runner
from bench.doctor.check import Identity
from bench.measure.energy import measure
from bench.measure.stream import burst_steps
from bench.measure.warmup import warm_up
from bench.phases.energy import WARM_UP_S, TrainingLoad
from bench.results.records import Device, Message

WINDOWS_S = (5.0, 10.0)


def identify(device: Device, _send: Callable[[Message], None]) -> Identity | None:
    """Follow a GPU's CUDA index to NVML's UUID and back; None where NVML does not start or does not know it."""
    nvml = open_nvml()
    if nvml is None:
        return None
    index = torch_device(device).index
    properties = gpu_properties(index)
    with nvml:
        try:
            gpu = nvml.gpu(cuda_uuid(index))
            # Asked of NVML anew, for ``gpu`` goes by the UUID that it was asked with.
            uuid = str(nvml.calls.call(gpu.uuid, "nvmlDeviceGetUUID", nvml.calls.target(gpu.uuid).handle))
        except NvmlFailure as failure:
            print(f"NVML does not know GPU {index}: {failure}")
            return None
    return Identity(
        cuda_index=index,
        cuda_name=properties.name,
        cuda_bytes=properties.total_memory,
        uuid=uuid,
        nvml_name=gpu.name,
        nvml_bytes=gpu.memory_total_bytes,
        back=tuple(other for other in range(gpu_count()) if uuid.endswith(cuda_uuid(other))),
    )


def cuda_uuid(index: int) -> str:
    """Return a GPU's UUID as CUDA tells it: without NVML's prefix."""
    return str(gpu_properties(index).uuid)


def energy_windows(device: Device, _send: Callable[[Message], None]) -> tuple[float, float] | None:
    """Return the joules per step of a window of 5 s and one of 10 s; None where the GPU does not tell."""
    nvml = open_nvml()
    if nvml is None or device.uuid is None:
        return None
    runner = training_runner(device)
    burst = burst_steps(warm_up(runner, WARM_UP_S).step_ns / 1e9)
    with nvml:
        meter, load = NvmlMeter(nvml, device.uuid), TrainingLoad(runner, _send)
        windows = [measure(load, meter, burst=burst, seconds=seconds) for seconds in WINDOWS_S]
    first, second = windows
    return (first.energy_j / first.steps, second.energy_j / second.steps) if first and second else None
