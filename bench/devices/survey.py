"""Survey of the machine: its devices, their names, and what they and this torch build support."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from importlib import metadata
from typing import Any

import torch

from bench.devices.backend import (
    backend_of,
    device_at,
    gpu_count,
    is_out_of_memory,
    runtime_problem,
)
from bench.devices.capabilities import set_fp32
from bench.devices.monitor import DeviceLostError, Monitor, Source, open_monitor
from bench.results.records import SPIN_VARIABLES, Device, Environment, Seen
from bench.spec.errors import UsageError
from bench.spec.placement import EVERY_GPU, Placement
from bench.spec.precisions import PRECISIONS


def survey(placements: tuple[str, ...] | None) -> Environment:
    """Describe this machine; runs in a process of its own, since it initialises the GPUs.

    Args:
        placements: what ``--gpus`` named, where ``EVERY_GPU`` is every visible GPU that this torch
            build has kernels for; None is the same, or the CPU where there is none.

    Raises:
        UsageError: a GPU that was named does not exist, or this torch build has no kernels for it.
    """
    problems = [backend_of(device_at(index)).kernels_problem() for index in range(gpu_count())]
    usable = [str(index) for index, problem in enumerate(problems) if not problem]
    words = placements or (EVERY_GPU if usable else "cpu",)
    names: dict[str, None] = {}
    for word in words:
        names |= dict.fromkeys((usable or ["0"]) if word == EVERY_GPU else [word])
    for name in names:
        _require_usable(Placement(name=name), problems)
    left_out = []
    if not placements or EVERY_GPU in placements:
        left_out = [f"{problem} It is left out." for problem in problems if problem]
    cuda = torch.version.cuda
    if torch.version.hip:
        cuda = f"ROCm {torch.version.hip}"
    variables = [f"{name}={os.environ[name]}" for name in SPIN_VARIABLES if name in os.environ]
    with open_monitor() or nullcontext() as monitor:
        driver = monitor.driver_version() if monitor else None
        devices = tuple(_device(Placement(name=name), monitor) for name in names)
    return Environment(
        host=platform.node(),
        os=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        # A plain str, so that reading the record does not import torch.
        torch=str(torch.__version__),
        torchvision=metadata.version("torchvision"),
        cuda=cuda,
        cudnn=_cudnn_version(),
        driver=driver,
        openmp=" ".join(variables) or None,
        devices=devices,
        left_out=tuple(left_out),
    )


def _require_usable(placement: Placement, problems: Sequence[str]) -> None:
    """Refuse a placement with a GPU that is missing or has a problem; they are of all GPUs."""
    for rank in range(len(placement.members)):
        index = placement.device_of(rank)
        if index is None:
            continue
        if index >= len(problems):
            why = f"the last is GPU {len(problems) - 1}" if problems else runtime_problem()
            raise UsageError(
                f"There is no GPU {index} here: {why}. Use --gpus cpu to measure on the CPU."
            )
        if problems[index]:
            raise UsageError(f"{problems[index]} Or use --gpus cpu.")


def _cudnn_version() -> str | None:
    """Return cuDNN's version; None without one, and where torch refuses it for a GPU too old."""
    backends: Any = torch.backends
    try:
        version = backends.cudnn.version()
    except RuntimeError:  # of any visible GPU, also of one that the run does not use
        return None
    return str(version) if version else None


def _device(placement: Placement, monitor: Monitor | None) -> Device:
    """Return one device, or several that train together merged into one with the UUIDs of all."""
    # The CPU may be a member several times.
    names = dict.fromkeys(placement.members)
    devices = [_rated(describe(name, monitor)) for name in names]
    if len(placement.members) == 1:
        return devices[0]
    sources = {device.energy for device in devices}
    source: Source | None = None
    if sources == {"counter"}:
        source = "counter"
    elif any(sources):
        # Also where only some have one, so that the energy trial names those without.
        source = "power"
    return replace(Device.joint(devices), placement=placement.name, energy=source)


def _rated(device: Device) -> Device:
    """Return a device with its rate of short matrix products; one whose memory is full has none."""
    place = device_at(Placement(name=device.placement).device_of())
    try:
        if device.is_gpu:
            return replace(device, fp32_gflops=_gflops(place, 4096))
        bf16_gflops = _gflops(place, 512, torch.bfloat16)
        return replace(device, fp32_gflops=_gflops(place, 1024), bf16_gflops=bf16_gflops)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return device


def describe(name: str, monitor: Monitor | None) -> Device:
    """Describe a device, by what ``--gpus`` calls it, without running anything on it.

    Its ``unsupported`` is over all precisions.
    """
    backend = backend_of(device_at(Placement(name=name).device_of()))
    facts = backend.describe()
    if monitor and "uuid" in facts:
        with suppress(DeviceLostError):  # or the library does not know it
            facts |= monitor.describe(facts["uuid"])
    unsupported = {}
    for precision in PRECISIONS.values():
        reason = backend.unsupported_reason(precision)
        if reason:
            unsupported[precision.name] = reason
    return Device(placement=name, unsupported=unsupported, **facts)


def _gflops(device: torch.device, size: int, dtype: torch.dtype = torch.float32) -> float:
    """Return the best rate of a linear layer's three products, for estimates only.

    All three, because a CPU that emulates a type may be fast in one layout and a hundred times
    slower in another.
    """
    set_fp32("ieee")
    a = torch.randn(size, size, device=device).to(dtype)
    best = float("inf")
    begin = time.perf_counter()
    for _ in range(8):
        start = time.perf_counter()
        products = a @ a.t() + a @ a + a.t() @ a
        float(products[0, 0])  # waits for them
        best = min(best, time.perf_counter() - start)
        if start - begin > 0.25:
            break
    return 3 * 2 * size**3 / best / 1e9


def look() -> tuple[tuple[Seen, ...], str]:
    """Return the devices, the CPU last, and why there is no GPU (empty if there is one).

    Runs in its own process, because it initialises the GPUs.
    """
    count = gpu_count()
    with open_monitor() or nullcontext() as monitor:
        seen = [_seen_gpu(index, monitor) for index in range(count)]
    cpu = Seen(
        device=_rated(describe("cpu", None)),
        memory_free_bytes=backend_of(device_at(None)).free_bytes(),
    )
    return (*seen, cpu), "" if count else runtime_problem()


def _seen_gpu(index: int, monitor: Monitor | None) -> Seen:
    device = describe(str(index), monitor)
    free = None
    if monitor and device.uuid:
        # Read from the driver's library: torch would create a context, which takes memory itself.
        with suppress(DeviceLostError):
            memory = monitor.memory(device.uuid)
            free = memory.free if memory else None
    return Seen(
        device=device,
        memory_free_bytes=free,
        problem=backend_of(device_at(index)).kernels_problem(),
    )
