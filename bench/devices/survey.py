"""Survey of the machine: its devices, their names, and what they and this torch build support."""

from __future__ import annotations

import itertools
import os
import platform
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch

from bench.devices.backend import (
    backend_of,
    device_at,
    gpu_count,
    is_out_of_memory,
    kernels_problem,
    runtime_problem,
    vendor,
)
from bench.devices.capabilities import set_fp32
from bench.devices.monitor import DeviceLostError, Gpu, GpuMeter, Monitor, energy_source, joint_source, open_monitor
from bench.results.records import SPIN_VARIABLES, Device, Environment, Seen
from bench.spec.errors import UsageError
from bench.spec.precisions import PRECISIONS, emulation_of, parse_precision
from bench.spec.trial import EVERY_GPU, Placement


def survey(placements: tuple[str, ...] | None, _send: Callable[[object], None]) -> Environment:
    """Describe this machine; runs in a process of its own, since it initialises the GPUs.

    Args:
        placements: what ``--gpus`` named, where ``EVERY_GPU`` is every visible GPU that this torch build has kernels
            for; None is the same, or the CPU where there is none.

    Raises:
        UsageError: a GPU that was named does not exist, or this torch build has no kernels for it.
    """
    count, every = gpu_count(), not placements or EVERY_GPU in placements
    problems = {str(index): kernels_problem(index) for index in range(count)} if every else {}
    usable = [name for name, problem in problems.items() if not problem]
    if placements and every and not usable:
        raise UsageError(
            f"{next(iter(problems.values()), None) or _no_gpu('GPU')} Use --gpus cpu to measure on the CPU."
        )
    words = [usable if word == EVERY_GPU else [word] for word in placements or (EVERY_GPU,)]
    names = tuple(dict.fromkeys(itertools.chain(*words))) or ("cpu",)
    _require_present([Placement(name=word) for name in names for word in Placement(name=name).members], count)
    with open_monitor() or nullcontext() as monitor:
        driver = monitor.driver_version() if monitor else None
        devices = tuple(_device(Placement(name=name), monitor) for name in names)
    return Environment(
        host=platform.node(),
        os=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=str(torch.__version__),  # a plain str, so that reading the record does not import torch
        torchvision=metadata.version("torchvision"),
        cuda=torch.version.cuda or (f"ROCm {torch.version.hip}" if torch.version.hip else None),
        cudnn=_cudnn_version(),
        driver=driver,
        openmp=" ".join(f"{name}={os.environ[name]}" for name in SPIN_VARIABLES if name in os.environ) or None,
        arch_list=tuple(torch.cuda.get_arch_list()),
        devices=devices,
        left_out=tuple(f"{problem} It is left out." for problem in problems.values() if problem),
    )


def _cudnn_version() -> str | None:
    """Return cuDNN's version; None without one, and where torch refuses it for a GPU that it does not support."""
    backends: Any = torch.backends
    try:
        version = backends.cudnn.version()
    except RuntimeError:  # of any visible GPU, also of one that the run does not use
        return None
    return str(version) if version else None


def _device(placement: Placement, monitor: Monitor | None) -> Device:
    """Return one device, or several that train together merged into one, which lists the UUIDs of all."""
    names = placement.members
    by_name = {word: describe_cpu() if word == "cpu" else _gpu(int(word), monitor) for word in dict.fromkeys(names)}
    devices = list(by_name.values())
    if len(names) == 1:
        return devices[0]
    return replace(
        Device.joint(devices),
        placement=placement.name,
        uuids=tuple(device.uuid for device in devices if device.uuid),
        energy=joint_source({device.energy for device in devices}),
    )


def _require_present(placements: list[Placement], count: int) -> None:
    missing = [one.name for one in placements if (index := one.device_of()) is not None and index >= count]
    if not missing:
        return
    wanted = " and no ".join(f"GPU {name}" for name in missing)
    if not count:
        raise UsageError(f"{_no_gpu(wanted)} Use --gpus cpu to measure on the CPU.")
    available = ", ".join(f"{index} ({torch.cuda.get_device_name(index)})" for index in range(count))
    raise UsageError(f"There is no {wanted} here. There is: {available}. Name one of these, or use --gpus cpu.")


def _no_gpu(wanted: str) -> str:
    return f"There is no {wanted} here: {runtime_problem()}."


def _gpu(index: int, monitor: Monitor | None) -> Device:
    if problem := kernels_problem(index):
        raise UsageError(f"{problem} Or use --gpus cpu.")
    device = describe_gpu(index, monitor)
    device = replace(device, native_bf16=backend_of(device_at(index)).native_bf16())
    try:
        return replace(device, fp32_gflops=_gflops(device_at(index), 4096))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return device  # its speed is unknown


def describe_gpu(index: int, monitor: Monitor | None) -> Device:
    """Describe a GPU as the runtime and the vendor's library know it, without running anything on it."""
    properties, maker = torch.cuda.get_device_properties(index), vendor()
    uuid = maker.uuid(properties)
    board = _board(uuid, monitor)
    return Device(
        placement=str(index),
        kind="cuda",
        name=properties.name,
        architecture=maker.architecture(maker.model(properties)),
        compute_capability=maker.compute_capability(properties),
        memory_total_bytes=properties.total_memory,
        uuid=board.uuid if board else uuid,
        cores=properties.multi_processor_count,
        energy=_energy(board, monitor),
        **_refusals(device_at(index)),
        **_limits(board),
    )


def _board(uuid: str | None, monitor: Monitor | None) -> Gpu | None:
    """Return the GPU or MIG slice with the runtime's ``uuid``; None where the library does not know it."""
    try:
        return monitor.gpu(uuid) if monitor and uuid else None
    except DeviceLostError:
        return None


def _limits(board: Gpu | None) -> dict[str, Any]:
    names = ("power_limit_w", "power_default_w", "sm_clock_limit_mhz", "memory_clock_limit_mhz")
    return {name: getattr(board, name) for name in names} if board else {}


def _energy(board: Gpu | None, monitor: Monitor | None) -> str | None:
    """Return the source of a GPU's energy; None where it reports neither energy nor power, such as a MIG slice."""
    if monitor is None or board is None:
        return None
    try:
        return energy_source(GpuMeter(monitor, board.uuid))
    except DeviceLostError:
        return None


def describe_cpu() -> Device:
    """Describe the CPU, with its rates of short matrix products."""
    return Device(
        placement="cpu",
        kind="cpu",
        name=cpu_name(),
        architecture=_cpu_architecture(),
        memory_total_bytes=psutil.virtual_memory().total,
        cores=psutil.cpu_count(logical=False),
        threads=torch.get_num_threads(),
        fp32_gflops=_gflops(device_at(None), 1024),
        bf16_gflops=_gflops(device_at(None), 512, torch.bfloat16),
        native_bf16=backend_of(device_at(None)).native_bf16(),
        **_refusals(device_at(None)),
    )


def _refusals(device: torch.device) -> dict[str, Any]:
    """Return a device's ``unsupported`` and ``lacking``, over all precisions and their emulated variants."""
    backend = backend_of(device)
    emulated = [parse_precision(emulation_of(name)) for name, kind in PRECISIONS.items() if kind.narrow]
    precisions = [*PRECISIONS.values(), *emulated]
    reasons = {precision.name: backend.unsupported_reason(precision) for precision in precisions}
    return {
        "unsupported": {name: reason for name, reason in reasons.items() if reason},
        "lacking": tuple(precision.name for precision in precisions if backend.missing_arithmetic(precision)),
    }


def cpu_name() -> str:
    """Return the CPU's model name; a run is only resumed on one of the same name."""
    try:
        model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except FileNotFoundError:  # on other systems than Linux
        model = None
    return model[1].strip() if model else platform.processor() or platform.machine()


def _cpu_architecture() -> str:
    """Name the widest instruction set that torch may use here; it decides whether bf16 is faster."""
    machine = "CPU " + platform.machine().replace("_", "-")
    for name, check in (
        ("AMX", "_is_amx_tile_supported"),
        ("AVX512-BF16", "_is_avx512_bf16_supported"),
        ("AVX512", "_is_avx512_supported"),
        ("AVX2", "_is_avx2_supported"),
    ):
        if getattr(torch.cpu, check, lambda: False)():
            return f"{machine}, {name}"
    return machine


def _gflops(device: torch.device, size: int, dtype: torch.dtype = torch.float32) -> float:
    """Time the three products of a linear layer's step a few times and return their best rate, for estimates only.

    All three, because a CPU that emulates a type may be fast in one layout and a hundred times slower in another.
    """
    set_fp32("ieee")
    a = torch.randn(size, size, device=device).to(dtype)
    best, begin = float("inf"), time.perf_counter()
    for _ in range(8):
        start = time.perf_counter()
        float((a @ a.t() + a @ a + a.t() @ a)[0, 0])  # waits for the products
        best = min(best, time.perf_counter() - start)
        if start - begin > 0.25:
            break
    return 3 * 2 * size**3 / best / 1e9


def look(_send: Callable[[object], None]) -> tuple[tuple[Seen, ...], str]:
    """Return the devices, the CPU last, and why there is no GPU (empty if there is one); runs in its own process."""
    count = gpu_count()
    with open_monitor() or nullcontext() as monitor:
        visible = [_visible(index, monitor) for index in range(count)]
    cpu = Seen(device=describe_cpu(), memory_free_bytes=psutil.virtual_memory().available)
    return (*visible, cpu), "" if count else runtime_problem()


def _visible(index: int, monitor: Monitor | None) -> Seen:
    device = describe_gpu(index, monitor)
    # Read from the driver's library: the runtime would create a context, which takes memory itself.
    board = _board(device.uuid, monitor)
    free, problem = board.memory_free_bytes if board else None, kernels_problem(index)
    native = None if problem else backend_of(device_at(index)).native_bf16()
    return Seen(device=replace(device, native_bf16=native), memory_free_bytes=free, problem=problem)
