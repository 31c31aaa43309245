"""The machine: its devices, what they are called, and what they and this torch build can do."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch

from bench.devices.capabilities import set_tf32, unsupported_reason
from bench.devices.energy import NvmlMeter, energy_source, joint_source
from bench.devices.nvidia import Gpu, Nvml, NvmlFailure, nvml_problem, open_nvml
from bench.results.records import SPIN_VARIABLES, Device, Environment, Seen
from bench.spec.errors import UsageError
from bench.spec.precisions import PRECISIONS
from bench.spec.trial import Placement

GENERATIONS = {
    (3, 0): "Kepler",
    (5, 0): "Maxwell",
    (6, 0): "Pascal",
    (7, 0): "Volta",
    (7, 5): "Turing",
    (8, 0): "Ampere",
    (8, 9): "Ada",
    (9, 0): "Hopper",
    (10, 0): "Blackwell",
    (13, 0): "newer than Blackwell",
}
"""The first compute capability of each generation (CUDA C++ Programming Guide, "Compute Capabilities")."""


def survey(placements: tuple[str, ...] | None, _send: Callable[[object], None]) -> Environment:
    """Look at this machine; run in a process of its own, since it touches the GPUs.

    Args:
        placements: what ``--gpus`` named; None is every visible GPU, or the CPU where there is none.

    Raises:
        UsageError: a GPU that is not there, or one that this torch build has no kernels for.
    """
    count = torch.cuda.device_count()
    names = placements or tuple(str(index) for index in range(count)) or ("cpu",)
    _require_present([Placement(name=word) for name in names for word in Placement(name=name).members], count)
    with open_nvml() or nullcontext() as nvml:
        driver = nvml.driver_version() if nvml else None
        devices = tuple(_device(Placement(name=name), nvml) for name in names)
    backends: Any = torch.backends
    cudnn = backends.cudnn.version()
    return Environment(
        host=platform.node(),
        os=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=str(torch.__version__),  # its own type would make whoever reads this import torch
        torchvision=metadata.version("torchvision"),
        cuda=torch.version.cuda,
        cudnn=str(cudnn) if cudnn else None,
        driver=driver,
        openmp=" ".join(f"{name}={os.environ[name]}" for name in SPIN_VARIABLES if name in os.environ) or None,
        arch_list=tuple(torch.cuda.get_arch_list()),
        devices=devices,
    )


def _device(placement: Placement, nvml: Nvml | None) -> Device:
    """Return one device, or several that train together as one: without a UUID of its own, but with all of theirs."""
    words = placement.members
    found = {word: describe_cpu() if word == "cpu" else _gpu(int(word), nvml) for word in dict.fromkeys(words)}
    first, names = found[words[0]], [found[word].name for word in words]
    if len(words) == 1:
        return first
    same = len(set(names)) == 1
    reasons = {name: why for device in found.values() for name, why in (device.unsupported or {}).items()}
    memory = [device.memory_total_bytes for device in found.values()]
    return replace(
        first,
        placement=placement.name,
        name=f"{len(words)} × {names[0]}" if same and first.kind == "cuda" else " + ".join(dict.fromkeys(names)),
        names=tuple(dict.fromkeys(names)),
        architecture=" + ".join(dict.fromkeys(device.architecture for device in found.values())),
        memory_total_bytes=sum(size or 0 for size in memory) if all(memory) else None,
        uuid=None,
        uuids=tuple(device.uuid for device in found.values() if device.uuid),
        power_limit_w=None,
        power_default_w=None,
        energy=joint_source({device.energy for device in found.values()}),
        unsupported={**reasons, **{name: p.single_device for name, p in PRECISIONS.items() if p.single_device}},
    )


def architecture(capability: tuple[int, int]) -> str:
    """Return the name of a GPU's generation."""
    older = [name for first, name in sorted(GENERATIONS.items()) if first <= capability]
    return older[-1] if older else f"sm_{capability[0]}{capability[1]}"


def has_kernels(capability: tuple[int, int], arch_list: tuple[str, ...]) -> bool:
    """Say whether a torch build runs on a GPU.

    It does when it holds a binary of the same major and no later minor version, or PTX of no later one
    (CUDA C++ Programming Guide, "Application Compatibility").
    """
    for arch in arch_list:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", arch)
        if match is None:
            continue
        built = int(match[2]), int(match[3])
        if built <= capability and (match[1] == "compute" or built[0] == capability[0]):
            return True
    return False


def _require_present(placements: list[Placement], count: int) -> None:
    missing = [placement.name for placement in placements if placement.index is not None and placement.index >= count]
    if not missing:
        return
    wanted = " and no ".join(f"GPU {name}" for name in missing)
    if not count:
        raise UsageError(f"There is no {wanted} here: {why_no_gpu()}. Use --gpus cpu to measure on the CPU.")
    there = ", ".join(f"{index} ({torch.cuda.get_device_name(index)})" for index in range(count))
    raise UsageError(f"There is no {wanted} here. There is: {there}. Name one of these, or use --gpus cpu.")


def why_no_gpu() -> str:
    """Say why CUDA has no GPU here."""
    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) is built without CUDA"
    if problem := nvml_problem():
        return f"no NVIDIA driver answers ({problem})"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    return f"CUDA_VISIBLE_DEVICES is '{hidden}'" if hidden is not None else "CUDA sees no GPU"


def _gpu(index: int, nvml: Nvml | None) -> Device:
    if problem := kernels_problem(index):
        raise UsageError(f"{problem} Or use --gpus cpu.")
    return replace(describe_gpu(index, nvml), fp32_gflops=_gflops(torch.device("cuda", index), 4096))


def kernels_problem(index: int) -> str:
    """Say why this torch build cannot run on a GPU; empty where it can."""
    properties: Any = torch.cuda.get_device_properties(index)
    if has_kernels((properties.major, properties.minor), tuple(torch.cuda.get_arch_list())):
        return ""
    return (
        f"This torch build ({torch.__version__}) has no kernels for GPU {index} ({properties.name}, "
        f"sm_{properties.major}{properties.minor}); it has {' '.join(torch.cuda.get_arch_list())}. "
        "Install a build for it: Pascal and Volta need one for CUDA 12.6 or older."
    )


def describe_gpu(index: int, nvml: Nvml | None) -> Device:
    """Describe a GPU as CUDA and NVML know it, without running anything on it."""
    properties: Any = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    board = _board(str(properties.uuid), nvml)
    return Device(
        placement=str(index),
        kind="cuda",
        name=properties.name,
        architecture=architecture(capability),
        compute_capability=f"{properties.major}.{properties.minor}",
        memory_total_bytes=properties.total_memory,
        uuid=board.uuid if board else str(properties.uuid),
        power_limit_w=board.power_limit_w if board else None,
        power_default_w=board.power_default_w if board else None,
        sm_clock_limit_mhz=board.sm_clock_limit_mhz if board else None,
        memory_clock_limit_mhz=board.memory_clock_limit_mhz if board else None,
        cores=properties.multi_processor_count,
        energy=_energy(board, nvml),
        unsupported=_unsupported("cuda", capability),
    )


def _board(uuid: str, nvml: Nvml | None) -> Gpu | None:
    """Return the GPU or MIG slice with CUDA's ``uuid`` as NVML knows it, or None where it does not."""
    try:
        return nvml.gpu(uuid) if nvml else None
    except NvmlFailure as failure:
        print(f"NVML does not know GPU {uuid}: {failure}")
        return None


def _energy(board: Gpu | None, nvml: Nvml | None) -> str | None:
    """Return where a GPU's energy is read from; None where neither energy nor power is told, as of a MIG slice."""
    if nvml is None or board is None:
        return None
    try:
        return energy_source(NvmlMeter(nvml, board.uuid))
    except NvmlFailure as failure:
        print(f"NVML lost GPU {board.uuid}, so its energy is not measured: {failure}")
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
        fp32_gflops=_gflops(torch.device("cpu"), 1024),
        bf16_gflops=_gflops(torch.device("cpu"), 512, torch.bfloat16),
        unsupported=_unsupported("cpu", None),
    )


def _unsupported(kind: Any, capability: tuple[int, int] | None) -> dict[str, str]:
    reasons = {name: unsupported_reason(p, kind, capability) for name, p in PRECISIONS.items()}
    return {name: reason for name, reason in reasons.items() if reason}


def cpu_name() -> str:
    """Return the CPU's model name."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _cpu_architecture() -> str:
    """Name the widest instructions that torch may use here: what decides whether bf16 is faster."""
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
    """Time the three products of a linear layer's step a few times and return their best rate, for estimates alone.

    All three, because a CPU that emulates a type may be fast in one layout and a hundred times slower in another.
    """
    set_tf32(False)
    a = torch.randn(size, size, device=device).to(dtype)
    best, begin = float("inf"), time.perf_counter()
    for _ in range(8):
        start = time.perf_counter()
        float((a @ a.t() + a @ a + a.t() @ a)[0, 0])  # waits for the products
        best = min(best, time.perf_counter() - start)
        if start - begin > 0.25:
            break
    return 3 * 2 * size**3 / best / 1e9


# What there is to run on, as CUDA and NVML see it; called in a process of its own, for it touches the GPUs.


def look(_send: Callable[[object], None]) -> tuple[tuple[Seen, ...], str]:
    """Return the devices, the CPU last, and why CUDA has no GPU; that is empty where it has one."""
    count = torch.cuda.device_count()
    with open_nvml() or nullcontext() as nvml:
        visible = [_visible(index, nvml) for index in range(count)]
        hidden = list(_hidden(visible, nvml)) if nvml else []
    cpu = Seen(device=describe_cpu(), memory_free_bytes=psutil.virtual_memory().available)
    return (*visible, *hidden, cpu), "" if count else why_no_gpu()


def _visible(index: int, nvml: Nvml | None) -> Seen:
    device = describe_gpu(index, nvml)
    return Seen(device=device, memory_free_bytes=_free_bytes(device, nvml), problem=kernels_problem(index))


def _free_bytes(device: Device, nvml: Nvml | None) -> int | None:
    """Ask NVML, because asking CUDA would make a context, which takes memory itself."""
    try:
        return nvml.gpu(device.uuid).memory_free_bytes if nvml and device.uuid else None
    except NvmlFailure:
        return None


def _hidden(visible: list[Seen], nvml: Nvml) -> Iterator[Seen]:
    """Yield the boards that NVML knows and CUDA does not see."""
    uuids = {seen.device.uuid for seen in visible if seen.device.uuid}
    known = {uuid.removeprefix("GPU-") for uuid in uuids}
    sliced = {_board_index(uuid, nvml) for uuid in uuids}
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    why = f"CUDA_VISIBLE_DEVICES is '{chosen}'" if chosen is not None else "the driver may be too old for this torch"
    if torch.version.cuda is None:
        why = f"this torch ({torch.__version__}) is built without CUDA"
    for board in nvml.gpus():
        if board.uuid.removeprefix("GPU-") not in known and board.nvml_index not in sliced:
            yield Seen(
                device=_of_board(board),
                memory_free_bytes=board.memory_free_bytes,
                problem=f"CUDA does not see it: {why}.",
            )


def _board_index(uuid: str, nvml: Nvml) -> int | None:
    """Return NVML's index of the board that a GPU, or a slice of one, is on."""
    try:
        return nvml.gpu(uuid).nvml_index
    except NvmlFailure:
        return None


def _of_board(board: Gpu) -> Device:
    major, _, minor = (board.compute_capability or "").partition(".")
    return Device(
        placement="",
        kind="cuda",
        name=board.name or "unknown",
        architecture=architecture((int(major), int(minor))) if major.isdigit() else "",
        compute_capability=board.compute_capability,
        memory_total_bytes=board.memory_total_bytes,
        uuid=board.uuid,
        power_limit_w=board.power_limit_w,
        power_default_w=board.power_default_w,
        sm_clock_limit_mhz=board.sm_clock_limit_mhz,
        memory_clock_limit_mhz=board.memory_clock_limit_mhz,
    )
